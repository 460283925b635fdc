"""Every notebook is committed as it was executed; `make test-system` executes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_was_executed_in_order_without_errors(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.get("name", output["output_type"]) for cell in cells for output in cell["outputs"]}
    assert kinds <= {"stdout", "display_data"}


def test_the_site_shows_the_notebooks_with_their_figures() -> None:
    import docs_pages

    pages = docs_pages.notebook_pages()
    for path in NOTEBOOKS:
        page = pages[f"notebooks/{path.stem}.md"]
        assert page.startswith("# ")
        assert page.count(f"]({path.stem}-") == sum(name.startswith(f"notebooks/{path.stem}-") for name in pages) > 1
