"""The protocol between coordinator and party, and the code generated from it."""

__all__: list[str] = []
