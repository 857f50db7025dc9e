"""The command line of Forerun: composes edge, verifier, link and demo pair."""
