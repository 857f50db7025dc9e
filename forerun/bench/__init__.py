"""`forerun bench`: a verifier under load, as a whole and part by part (docs/capacity.md)."""
