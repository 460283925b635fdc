"""How a coordinator reaches its parties: by gRPC with mutual TLS, in process, or by a registered transport."""

__all__: list[str] = []
