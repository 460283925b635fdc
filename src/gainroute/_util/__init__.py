"""Small helpers that know nothing of routing: files, settings, progress, threads, resampling."""

__all__: list[str] = []
