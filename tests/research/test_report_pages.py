"""The comparison pages of a report: in the JSON, on every page, cached, and found next to the package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic_records import synthetic_record

from gainroute._util.hashing import hash_contents
from gainroute.experiments import checkout, figures
from gainroute.experiments.checkout import comparison_pages
from gainroute.experiments.records import save_record
from gainroute.experiments.report import build_report
from research import claims, report_pages, versus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        save_record(synthetic_record(seed, samples=150), base / f"records/synthetic/seed{seed}.npz")
    regime = {"rates": [0.1, 0.2, 0.4], "routing_only": [0.7] * 3, "total": [0.8] * 3, "weak": 0.6, "strong": 0.9}
    known = {
        str(seed): {
            "record": hash_contents(base / f"records/synthetic/seed{seed}.npz"),
            "regimes": {"0": regime, "3": regime},
        }
        for seed in (0, 1)
    }
    (base / "out").mkdir()
    (base / "out/bound.json").write_text(json.dumps({"synthetic": known}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "encode", lambda _, kind: kind.encode())  # `test_report` draws in earnest
        build_report(base / "records", base / "out", extra=comparison_pages(), cache_dir=base / "cache")
    return base


def test_the_comparison_with_the_paper_is_in_the_json_and_on_the_pages(folder: Path) -> None:
    stated = json.loads((folder / "out/synthetic.json").read_bytes())
    assert [(row["noise_classes"], row["rate"]) for row in stated["versus_paper"]] == [
        (regime, rate) for regime in (0, 3) for rate in (0.1, 0.2, 0.4)
    ]
    for row in stated["versus_paper"]:
        assert {"dataset", "difference", "low", "high", "by_seed", "routing_only"} <= set(row)
        assert set(row["by_seed"]) == {"0", "1"}
    for page in ("versus_paper.md", "synthetic.md"):
        text = (folder / "out" / page).read_text(encoding="utf-8")
        assert "difference, seeds 0, 1" in text
        assert "| our default | bound |" in text
    readme = (folder / "out/README.md").read_text(encoding="utf-8")
    assert "(versus_paper.md)" in readme
    assert "(which_router.md)" in readme


def test_the_guide_shows_a_figure_per_data_set(folder: Path) -> None:
    guide = (folder / "out/which_router.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", guide)
    assert pictures == ["synthetic/which.png"]
    assert (folder / "out" / pictures[0]).read_bytes() == b"png"


def test_a_second_run_computes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(versus, "_rows", refuse)
    monkeypatch.setattr(claims, "_regime", refuse)
    monkeypatch.setattr(figures, "encode", refuse)
    first = {path.name: path.read_bytes() for path in (folder / "out").glob("*.md")}
    build_report(folder / "records", folder / "out", extra=comparison_pages(), cache_dir=folder / "cache")
    assert {path.name: path.read_bytes() for path in (folder / "out").glob("*.md")} == first


def test_they_are_found_next_to_the_package_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(comparison_pages(), report_pages.ComparisonPages)
    monkeypatch.setattr(checkout, "__file__", str(tmp_path / "site-packages/gainroute/experiments/checkout.py"))
    assert comparison_pages() is None
