"""A data set is one function and one registration."""

from pathlib import Path

import numpy as np
import pytest

from gainroute.errors import SettingError
from gainroute.experiments.config import parse_config
from gainroute.experiments.runner import run_cell
from gainroute.training.data import Dataset, DataSettings, Part, datasets, download_dataset, load_dataset
from gainroute.training.trained_run import load_parties

CONFIG = """
name = "mine"
threads = 1
[data]
source = "mine"
image_size = 7
[local]
epochs = 1
[vfl]
epochs = 1
width = 2
latent = 8
[masked]
epochs = 1
[defer]
alphas = []
"""


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Path | None]]:
    calls: list[tuple[int, Path | None]] = []
    monkeypatch.setattr(datasets, "_registered", {})

    @datasets.register("mine")
    def load(settings: DataSettings, data_dir: Path | None) -> Dataset:
        calls.append((settings.image_size, data_dir))
        rng, labels = np.random.default_rng(0), np.arange(90) % 3
        images = rng.normal(5, 2, size=(90, 1, 4, 4)).astype(np.float32)
        vectors = rng.normal(-3, 4, size=(90, 6)).astype(np.float32)
        whole = Part(np.arange(90), labels, (images, vectors))
        return Dataset(
            "mine", whole.take(np.arange(60)), whole.take(np.arange(60, 90)), ("a", "b", "c"), ("eye", "ear")
        )

    return calls


def test_a_registered_data_set_is_trained_by_its_name_in_a_config(
    mine: list[tuple[int, Path | None]], tmp_path: Path
) -> None:
    record = run_cell(parse_config(CONFIG), 0, data_dir=tmp_path, run_dir=tmp_path / "run")
    assert mine == [(7, tmp_path)]
    assert (record.dataset, record.party_names, len(record.test)) == ("mine", ("eye", "ear"), 30)
    raw = load_dataset("mine").test
    for index, party in enumerate(load_parties(tmp_path / "run")):
        answers = party.holding(raw.ids, raw.views[index]).posteriors(raw.ids.tolist())
        assert np.allclose(answers, record.test.local_posteriors[index], atol=1e-5), "raw views are standardised alike"


def test_a_name_can_be_registered_once_and_not_every_data_set_has_a_download(
    mine: list[tuple[int, Path | None]], tmp_path: Path
) -> None:
    assert datasets.names() == (
        "digits", "modelnet40", "cifar10", "cifar100", "adult", "credit", "ccv", "leaves100", "mine",
    )  # fmt: skip
    with pytest.raises(SettingError, match="'digits' is already registered"):
        datasets.register("digits", datasets.get("mine"))
    with pytest.raises(SettingError, match="mine has no download"):
        download_dataset("mine", tmp_path)
    with pytest.raises(SettingError, match="name it with --data-dir"):
        download_dataset("cifar10", None)
