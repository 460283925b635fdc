"""The research folder of a checkout, which adds the comparison pages to a report."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from gainroute.errors import SettingError
from gainroute.experiments.report import ReportExtra

__all__ = ["NEEDS_CHECKOUT", "comparison_pages"]

NEEDS_CHECKOUT = "the pages that compare with the paper need a checkout of the repository; they are left out"


def comparison_pages() -> ReportExtra | None:
    """The pages that compare with the paper; None where gainroute is installed without its repository."""
    root = Path(__file__).resolve().parents[3]
    if not ((root / "research/__init__.py").is_file() and (root / "pyproject.toml").is_file()):
        return None
    sys.path.insert(0, str(root))
    try:
        module = importlib.import_module("research.report_pages")
    finally:
        sys.path.remove(str(root))
    if Path(str(module.__file__)).parent != root / "research":
        raise SettingError(f"another package named research ({module.__file__}) was imported before; rename it")
    extra: ReportExtra = module.ComparisonPages()
    return extra
