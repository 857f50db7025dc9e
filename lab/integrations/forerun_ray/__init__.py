"""Run the verifier as an application of Ray Serve."""
