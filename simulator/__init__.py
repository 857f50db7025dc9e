"""The same two machines in virtual time: worlds of links, devices and verifiers, without network or model."""
