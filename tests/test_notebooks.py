"""Every notebook runs from top to bottom, and is committed as it was executed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("default")  # what Jupyter's own libraries warn of is not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert (
        sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])) > 1
    )


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
