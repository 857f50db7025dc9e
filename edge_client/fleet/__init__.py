"""A device in its fleet over MQTT (docs/fleet.md): beside the product, never on a token's path.

document   topics, payloads, and the signed document of desired settings
keys       Ed25519 keys and their files
desired    which document holds on a device, sans-IO
mqtt       one connection to the broker, by aiomqtt
device     the device's task: state file, reconnects, status reports
follower   what the fleet reads and changes in the daemon
"""
