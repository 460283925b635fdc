"""The documentation agrees with the code, and its links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MKDOCS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"(?ms)^```.*?^```")
PYTHON = re.compile(r"(?ms)^```python\n(.*?)^```")


# .pytest_cache and the like write Markdown of their own.
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *(ROOT / "docs").rglob("*.md")])


def heading_ids(text: str) -> set[str]:
    """The anchors that GitHub and the site give to headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_page_shows_the_layers_of_the_import_contract():
    contract = next(c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    layers = [layer.replace("gainroute.", "") for layer in contract["layers"]]
    section = (ROOT / "docs/how_it_works.md").read_text(encoding="utf-8").split("## Layers")[1].split("\n## ")[0]
    shown = [re.split(r" {2,}", line.strip())[0] for line in section.splitlines() if line.startswith("    ")]
    assert shown == layers
    assert len(layers) == 7


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page):
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(FENCED.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in heading_ids(target.read_text(encoding="utf-8")), f"{link} names no heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_in_pages_compiles(page):
    for block in PYTHON.findall(page.read_text(encoding="utf-8")):
        ast.parse(block)


def test_a_router_has_one_name_on_every_page():
    # Decisions and the changelog tell what was done under the names of their time.
    told = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "decisions"]
    old = re.compile(
        r"(?i)analytical (router|score)|expected-gain \((paper|tuned)\)|\|[^|\n`]*\bours \((total|routing only)\)"
    )
    assert [page.name for page in told if old.search(page.read_text(encoding="utf-8"))] == []


def test_every_page_is_in_the_navigation():
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in PAGES if p.is_relative_to(ROOT / "docs")}
    missing = {page for page in pages if not re.search(rf"(?m)[ :]{re.escape(page)}$", MKDOCS)}
    assert not missing


@pytest.mark.parametrize("page", ["three_lines.md", "extend.md", "rare_classes.md"])
def test_the_python_of_the_page_runs(page, tmp_path, monkeypatch):
    import gainroute as gr

    monkeypatch.chdir(tmp_path)
    for register in (
        gr.register_router,
        gr.register_calibrator,
        gr.register_pool,
    ):  # names of the page stay in the page
        monkeypatch.setattr(register.__self__, "_registered", dict(register.__self__._registered))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    exec("\n".join(PYTHON.findall(text)), {})  # noqa: S102 (our own page)


def test_every_public_name_is_on_one_page_of_the_reference():
    import gainroute

    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "tools/docs_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    listed = [name for names in module.topics().values() for name in names]
    assert sorted(listed) == sorted(name for name in gainroute.__all__ if not name.startswith("__"))
    assert "gainroute up" in module.cli_page()


def test_the_page_names_the_parts_of_the_dashboard():
    dashboard = (ROOT / "src/gainroute/federation/coordinator/dashboard/index.html").read_text(encoding="utf-8")
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8").split("## The dashboard")[1].split("\n## ")[0]
    titles = re.findall(r"(?m)^\| ([A-Z][^|]+) \|", page)
    assert len(titles) >= 14
    assert [title for title in titles if f">{title}</h2>" not in dashboard] == []


def test_every_promise_of_the_threat_model_names_a_test_that_exists():
    page = (ROOT / "docs/threat_model.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)::(\w+)`", page))
    assert len(named) > 30
    for file, name in sorted(named):
        path = ROOT / "tests" / file
        assert path.is_file(), f"{file} is gone"
        assert f"def {name}(" in path.read_text(encoding="utf-8"), f"{file}::{name} is gone"
