"""The gRPC front door of a coordinator: the Open Inference Protocol beside HTTP."""

__all__: list[str] = []
