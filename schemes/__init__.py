"""Published schemes: policies, rules, drafters and a relay, found by name, and claims of their papers
(docs/schemes.md)."""
