"""The service: parties and a coordinator as processes, and what connects them."""

__all__: list[str] = []
