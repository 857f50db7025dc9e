"""Published schemes as engines around the verifier's engine: early hints, and second looks at a draft."""
