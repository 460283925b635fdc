"""Reading and writing files: posteriors, views, precomputed answers, run folders."""

__all__: list[str] = []
