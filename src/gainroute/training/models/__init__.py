"""The torch models: local classifiers, encoders, fusion head, and how they are built and kept."""

__all__: list[str] = []
