"""The torch models: local classifiers, encoders, fusion head, and how they are built and saved."""

__all__: list[str] = []
