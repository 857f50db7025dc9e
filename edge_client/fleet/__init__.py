"""The device's side of a fleet over MQTT (docs/fleet.md): beside the product, never on a token's path."""
