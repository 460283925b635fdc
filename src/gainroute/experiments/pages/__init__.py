"""Tables, text and HTML of reports."""

__all__: list[str] = []
