import json
from pathlib import Path

import numpy as np
import pytest

from research import local_models


def test_what_was_measured_already_becomes_the_table_without_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {f"digits/before/{seed}": {"local": 0.9} for seed in local_models.SEEDS}
    for seed, local in enumerate((0.93, 0.94, 0.95, 0.96, 0.97)):
        found[f"digits/networks/{seed}"] = {"local": local, "yardstick": local - 0.02, "strong": 0.99}
    out = tmp_path / "found.json"
    out.write_text(json.dumps(found))
    local_models.main(["--out", str(out), "--data", "digits", "--variants", "networks", "before"])
    row = capsys.readouterr().out.splitlines()[-1]
    assert "| digits | 93.0 ± 2.0 | 90.0 ± 0.0 | 95.0 ± 2.0 |" in row
    assert row.endswith("| 2.0 ± 0.0 |"), "differences are paired by seed"


def test_the_views_of_the_digits_are_quadrants() -> None:
    views, labels = local_models._views("digits", Path())
    assert [view["x"].shape for view in views.values()] == [(1797, 16)] * 4
    assert np.unique(labels).size == 10
