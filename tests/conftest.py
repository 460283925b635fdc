"""What all tests share.

One thread a test process: BLAS and OpenMP threads on a shared machine slow each other down thirtyfold.
"""

import functools
import gc
import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from hypothesis import settings  # noqa: E402 (the threads are set before numpy is imported)
from typer import testing  # noqa: E402

# No test asserts a wall-clock time, and a run on another day tries the same examples.
settings.register_profile("gainroute", deadline=None, derandomize=True)
settings.load_profile("gainroute")

# The commands are built once, not at each `CliRunner.invoke`.
testing._get_command = functools.cache(testing._get_command)


def pytest_collection_finish() -> None:
    """Spare every full garbage collection the many objects of what was imported, which stay to the end."""
    gc.freeze()
