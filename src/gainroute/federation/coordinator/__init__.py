"""The coordinator: the HTTP front door, batching, Algorithm 1 over remote parties, the decision log, metrics."""

__all__: list[str] = []
