"""Experiments: config, runner (resumes), records, and what is made of them."""

__all__: list[str] = []
