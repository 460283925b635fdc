"""The decision log: schema, writer, reader."""

__all__: list[str] = []
