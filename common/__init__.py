"""What the two sides of Forerun share: words (messages, tree, noise, choice, estimators ...) and the wire."""
