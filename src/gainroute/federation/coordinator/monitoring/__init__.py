"""What examines answers after they were given: statistics, drift, the shadow router."""

__all__: list[str] = []
