import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gainroute._util.progress import Progress
from gainroute.errors import NotAnArtifactError, StorageError
from gainroute.routing.types import IntArray
from gainroute.training.answer import answer
from gainroute.training.checkpoint import Checkpoint, CheckpointState, CheckpointStore
from gainroute.training.data import Part, load_dataset
from gainroute.training.prepare import prepare_dataset
from gainroute.training.route_answers import RouteAnswers
from gainroute.training.routes import TrainingData, train_routes
from gainroute.training.settings import DeferSettings, LocalSettings, MaskedSettings, RouteSettings, VflSettings
from gainroute.training.training_view import TrainingView

SETTINGS = RouteSettings(
    local=LocalSettings(epochs=2, batch=16, widths=(2, 2, 4, 4), augment=True),
    vfl=VflSettings(epochs=2, batch=16, width=2, latent=8, auxiliary=0.5, augment=True),
    masked=MaskedSettings(epochs=2, batch=16),
    defer=DeferSettings(alphas=(1.0,), crossfit_seeds=(0,)),
)


class _KilledError(Exception):
    pass


class _KillAfter(Progress):
    """Breaks off after so many epochs, as a kill would."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def advance(self, note: str = "") -> None:
        self.left -= 1
        if self.left == 0:
            raise _KilledError


def _data() -> TrainingData:
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 3

    def altered(rows: IntArray, generator: np.random.Generator) -> npt.NDArray[np.float32]:
        return np.asarray(images[rows] + generator.normal(0, 0.1, (len(rows), 1, 4, 4)), dtype=np.float32)

    images = (rng.normal(size=(48, 1, 4, 4)) + labels[:, None, None, None]).astype(np.float32)
    views = tuple(TrainingView(images, np.arange(48), altered) for _ in range(2))
    return TrainingData(views, labels, 3, ("left", "right"), "fingerprint")


def _outcome(folder: Path | None, progress: Progress | None = None) -> RouteAnswers:
    data = _data()
    routes = train_routes(data, SETTINGS, seed=0, store=CheckpointStore(folder), progress=progress or Progress())
    return answer(routes, Part(np.arange(48), data.labels, tuple(view.clean for view in data.views)))


def _same(one: RouteAnswers, other: RouteAnswers) -> bool:
    return (
        np.array_equal(one.local_posteriors, other.local_posteriors)
        and np.array_equal(one.strong_posterior, other.strong_posterior)
        and all(np.array_equal(v, other.subset_predictions[k]) for k, v in one.subset_predictions.items())
        and all(np.array_equal(v.score, other.defer[k].score) for k, v in one.defer.items())
    )


@pytest.fixture(scope="module")
def undisturbed() -> RouteAnswers:
    return _outcome(None)


def test_a_run_killed_in_every_stage_resumes_to_the_same_bits(undisturbed: RouteAnswers, tmp_path: Path) -> None:
    killed_after = [0, 1, 2, 5, 6, 8, 10, 13]  # epochs in all: each run goes on where the last one was killed
    for epochs in np.diff(killed_after).tolist():
        with pytest.raises(_KilledError):
            _outcome(tmp_path, _KillAfter(epochs))
    assert _same(_outcome(tmp_path), undisturbed)


def test_finished_stages_are_loaded_and_not_trained_again(undisturbed: RouteAnswers, tmp_path: Path) -> None:
    _outcome(tmp_path)
    assert _same(_outcome(tmp_path, _KillAfter(1)), undisturbed), "one epoch more would have raised"


def test_another_setting_or_split_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    paths = {store.checkpoint("vfl", SETTINGS.vfl, fingerprint).path for fingerprint in ("a", "b")}
    assert len(paths) == 2
    assert store.checkpoint("vfl", SETTINGS.vfl, "a").path in paths


def test_other_views_under_the_same_ids_are_other_data() -> None:
    digits = load_dataset("digits")
    changed = replace(digits, train=replace(digits.train, views=tuple(view[..., ::-1] for view in digits.train.views)))
    fingerprints = [
        prepare_dataset(data, 0.2, 0, how).train.fingerprint for data in (digits, changed) for how in ("", "shifted")
    ]
    assert len(set(fingerprints)) == 4
    assert prepare_dataset(digits, 0.2, 0).train.fingerprint == fingerprints[0]


def test_a_cross_fitted_expert_gets_a_row_of_its_own(undisturbed: RouteAnswers) -> None:
    assert list(undisturbed.defer) == ["1", "1-crossfit"]


def test_a_full_disk_is_a_clear_error_and_the_last_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path / "stage.safetensors")
    checkpoint.save(CheckpointState(1, 0.5, {"w": torch.ones(3)}))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space left.*free some space .* run the command again"):
        checkpoint.save(CheckpointState(2, 1.0, {"w": torch.zeros(3)}))
    kept = checkpoint.load()
    assert kept is not None
    assert kept.epochs == 1
    assert torch.equal(kept.tensors["w"], torch.ones(3))


def test_a_damaged_checkpoint_says_which_file_to_delete(tmp_path: Path) -> None:
    path = tmp_path / "stage.safetensors"
    path.write_bytes(b"not a checkpoint at all")
    with pytest.raises(NotAnArtifactError, match=r"stage\.safetensors cannot be read.*delete it"):
        Checkpoint(path).load()
