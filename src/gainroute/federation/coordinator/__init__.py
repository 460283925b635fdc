"""The coordinator: HTTP server, batching, Algorithm 1 over remote parties, the decision log, metrics."""

__all__: list[str] = []
