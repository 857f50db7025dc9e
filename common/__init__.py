"""What the two sides of Forerun share: words (messages, tree, noise, sampling, estimators, errors) and the wire."""
