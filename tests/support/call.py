"""A gRPC call of which only the metadata is there."""


class Call:
    """Carries these values as its `authorization` entries."""

    def __init__(self, *values: str) -> None:
        self._metadata = tuple(("authorization", value) for value in values)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata
