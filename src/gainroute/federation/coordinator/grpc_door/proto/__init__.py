"""The messages of the Open Inference Protocol, and the code generated from them."""

__all__: list[str] = []
