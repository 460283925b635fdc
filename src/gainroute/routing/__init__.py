"""The method: from local posteriors to a decision and an answer, one file per stage. numpy and scipy only."""

__all__: list[str] = []
