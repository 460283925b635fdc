"""The studies behind the results in docs/results: run from a checkout, not part of the installed package."""

__all__: list[str] = []
