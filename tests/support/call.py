"""A gRPC call of which only the metadata is there."""


class Call:
    """Carries these values, each as an entry of its own."""

    def __init__(self, *values: str, key: str = "authorization") -> None:
        self._metadata = (("user-agent", "x"), *((key, value) for value in values))

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata
