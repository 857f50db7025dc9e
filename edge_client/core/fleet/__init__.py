"""The mind of a device in a fleet: topics, payloads, presence, orders. `edge_client.fleet` drives it."""
