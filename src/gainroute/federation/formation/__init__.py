"""Form a federation: align ids privately, train, calibrate and deploy across organisations."""

__all__: list[str] = []
