"""Reports: rebuilt from records alone, quick the second time, with external routers in every table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_records import synthetic_record

import gainroute as gr
from gainroute.errors import DataError, SettingError
from gainroute.evaluation.compare import load_router
from gainroute.evaluation.figures import encode
from gainroute.experiments import figures, measures, partial_curves, summary
from gainroute.experiments.records import save_record
from gainroute.experiments.report import build_report
from gainroute.experiments.study import study_of
from gainroute.routing.types import FloatArray


class Margin(gr.Router):
    """An external router: the margin between the two likeliest classes."""

    def score(self, round_one: gr.RoundOne) -> FloatArray:
        top = np.sort(round_one.pooled, axis=1)
        return top[:, -2] - top[:, -1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        save_record(synthetic_record(seed, samples=150), base / f"records/synthetic/seed{seed}.npz")
    with pytest.MonkeyPatch.context() as patch:
        # Coarse, and a stand-in for each PDF: `test_figures` draws them in earnest.
        patch.setattr(figures, "encode", lambda figure, kind: b"%PDF" if kind == "pdf" else encode(figure, kind, 40))
        build_report(base / "records", base / "out", cache_dir=base / "cache")
    return base


def test_a_page_with_every_table_and_no_broken_picture(folder: Path) -> None:
    page = (folder / "out/synthetic.md").read_text(encoding="utf-8")
    assert "## Clean" in page
    assert "## Noise on 3 of 10 classes" in page
    assert str(folder) not in page
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert len(pictures) == 6
    for picture in pictures:
        assert (folder / "out" / picture).read_bytes().startswith(b"\x89PNG")
        assert (folder / "out" / picture).with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    readme = (folder / "out/README.md").read_text(encoding="utf-8")
    assert "[synthetic](synthetic.md)" in readme
    stated = json.loads((folder / "out/synthetic.json").read_bytes())
    assert len(stated["partial"]["3"]["curve"]["mean"]) == 101


def test_a_router_has_one_name_on_every_page_and_json_keeps_its_keys(folder: Path) -> None:
    for page in (folder / "out").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\bours\b|analytical|expected-gain", text), page
        assert "our default" in text
    routers = json.loads((folder / "out/synthetic.json").read_bytes())["regimes"]["0"]["routers"]
    assert {"ours (total)", "ours (routing only)", "expected gain"} <= set(routers)


def test_charts_that_show_confidence_show_calibrated_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}

    def keep(figure: Any, kind: str) -> bytes:
        drawn[id(figure)] = figure
        return kind.encode()

    monkeypatch.setattr(figures, "encode", keep)
    study = study_of([synthetic_record(0)])
    figures.draw_figures(study, summary.summarise(study, replicates=10) | {"partial": {}}, [])
    legends = [{text.get_text() for text in figure.legends[0].get_texts()} for figure in drawn.values()]
    shown = [names for names in legends if "confidence" in names]
    assert len(shown) == 4
    assert all("calibrated confidence" in names for names in shown)
    assert not any("ours" in name for names in legends for name in names)


def test_one_data_set_alone_leaves_the_others_and_the_index_alone(tmp_path: Path, undrawn: None) -> None:
    for name in ("one", "two"):
        record = replace(synthetic_record(0, samples=60), dataset=name)
        save_record(record, tmp_path / f"records/{name}/seed0.npz")
    built = build_report(tmp_path / "records", tmp_path / "out", names=["two"])
    assert set(built) == {"two"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["two", "two.json", "two.md"]
    with pytest.raises(SettingError, match=r"no record of 'three'; it holds records of one, two"):
        build_report(tmp_path / "records", tmp_path / "out", names=["two", "three"])


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "encode", lambda *_: b"")


def test_a_second_run_fits_nothing_and_says_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (folder / "out/synthetic.md").read_text(encoding="utf-8")

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("fitted again")

    monkeypatch.setattr(gr.Router, "fit", refuse)
    monkeypatch.setattr(measures, "reliability_diagram", refuse)
    monkeypatch.setattr(partial_curves, "partial_curves", refuse)
    monkeypatch.setattr(summary, "_regime", refuse)
    monkeypatch.setattr(figures, "encode", refuse)
    build_report(folder / "records", folder / "again", cache_dir=folder / "cache")
    assert (folder / "again/synthetic.md").read_text(encoding="utf-8") == first
    for kind in ("png", "pdf"):
        drawn = [folder / f"{run}/synthetic/which.{kind}" for run in ("out", "again")]
        assert drawn[0].read_bytes() == drawn[1].read_bytes() != b""


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_damaged_cache_is_made_anew(folder: Path) -> None:
    for entry in (folder / "cache").iterdir():
        entry.write_bytes(entry.read_bytes()[:20])
    built = build_report(folder / "records", folder / "again", cache_dir=folder / "cache")
    assert built["synthetic"]["seeds"] == [0, 1]


@pytest.mark.usefixtures("undrawn")
def test_an_external_router_is_in_every_table_with_paired_differences(folder: Path) -> None:
    built = build_report(
        folder / "records", folder / "mine", routers=[f"{__name__}:Margin"], cache_dir=folder / "cache"
    )
    for regime in built["synthetic"]["regimes"].values():
        assert set(regime["routers"]["Margin"]["minus_confidence"]) == {"mean", "low", "high", "t_low", "t_high"}
    page = (folder / "mine/synthetic.md").read_text(encoding="utf-8")
    assert page.count("| Margin |") == 2 * 4
    assert f"--router {__name__}:Margin" in page


@pytest.mark.parametrize(
    ("spec", "words"),
    [("Margin", "module:Class"), ("no_such_module:X", "cannot be imported"), ("json:loads", "derived from")],
)
def test_what_is_no_router_is_refused(spec: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        load_router(spec)


def test_a_router_that_is_in_every_table_already_is_refused(folder: Path) -> None:
    with pytest.raises(SettingError, match="in every table already"):
        build_report(folder / "records", folder / "mine", routers=["confidence"])


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no record"):
        build_report(tmp_path, tmp_path / "out")
