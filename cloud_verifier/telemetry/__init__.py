"""What a verifier tells of itself while it runs: metrics, logs and a view of its live sessions."""
