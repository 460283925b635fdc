"""The cache: an entry is found again only while the data, settings and code it was made from are the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gainroute.experiments.cache import source_hash


@pytest.mark.parametrize("edited", ["mine.py", "helper.py", "inner/deep.py"])
def test_a_users_module_is_hashed_with_all_that_it_imports(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    texts = {
        "mine.py": "import numpy, helper\n",
        "helper.py": "def f():\n    from inner import deep\n    return deep\n",
        "inner/__init__.py": "",
        "inner/deep.py": "from . import wide\n",
        "inner/wide.py": "import no_such_module\n",
        "other.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "inner", raising=False)

    def hashed() -> str:
        source_hash.cache_clear()
        return source_hash("mine")

    before = hashed()
    (tmp_path / "other.py").write_text("changed = 1\n", encoding="utf-8")
    assert hashed() == before
    (tmp_path / edited).write_text(texts[edited] + "changed = 1\n", encoding="utf-8")
    assert hashed() != before


def hashed_modules(monkeypatch: pytest.MonkeyPatch, root: str) -> set[str]:
    """The modules whose code is part of the keys of `root`."""
    seen: set[str] = set()

    def keep(files: Any) -> str:
        seen.update(name for name, _ in files)
        return ""

    monkeypatch.setattr("gainroute.experiments.cache.hash_named_files", keep)
    source_hash.cache_clear()
    source_hash(root)
    source_hash.cache_clear()
    return seen


def test_scores_rest_on_routing_and_not_on_metrics_or_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits take minutes: editing a metric or a page must not repeat them."""
    seen = hashed_modules(monkeypatch, "gainroute.experiments.scores")
    assert {"gainroute.routing.routers", "gainroute.routing._newton", "gainroute.experiments.records"} <= seen
    assert not [name for name in seen if name.startswith(("gainroute.evaluation", "gainroute.experiments.pages"))]


@pytest.mark.parametrize("root", ["gainroute.experiments.summary", "research.claims", "research.versus"])
def test_published_numbers_rest_on_metrics_scores_and_their_own_code(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In short what `tests/system/test_edited_code.py` shows of the command."""
    seen = hashed_modules(monkeypatch, root)
    assert {root, "gainroute.evaluation.metrics", "gainroute.routing.decide", "gainroute.experiments.scores"} <= seen
