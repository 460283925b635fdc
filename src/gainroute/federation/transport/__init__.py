"""How a coordinator reaches its parties: in process, or by gRPC with mutual TLS; the same party behind each."""

__all__: list[str] = []
