"""The coordinator's HTTP endpoints."""

__all__: list[str] = []
