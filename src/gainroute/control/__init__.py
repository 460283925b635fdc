"""What keeps a deployed router honest: budget controller, drift monitor, recalibration, shadow comparison."""

__all__: list[str] = []
