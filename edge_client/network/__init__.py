"""The edge's end of the wire: the choice between verifiers, channels and streams to them, and the driver of
one session."""
