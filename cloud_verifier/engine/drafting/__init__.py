"""The verifier's own drafter: it guesses, beside the target, how texts go on."""
