"""Programs of maintainers: generators and our own lint rules. Never installed."""
