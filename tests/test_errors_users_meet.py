"""Mistakes that new users made: each is answered by one clear sentence, or simply works."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from synthetic import world
from typer.testing import CliRunner

import gainroute as gr
from gainroute._util.files import writable_folder, write_bytes
from gainroute.cli._command import Command, ResumableCommand
from gainroute.errors import DataError, GainrouteError, LabelError, SettingError, StorageError
from gainroute.evaluation.metrics import operating_point
from gainroute.io.posteriors import load_outcomes
from gainroute.io.tables import read_table
from gainroute.io.views import PartyView, SampleLabels, align
from gainroute.training.optimise import check_device
from gainroute.training.settings import FitSettings

DATA = world(80, 2, 3, 0)


def test_a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    assert check_device("cpu") == "cpu"
    for name in ("cuda:7", "gpu"):
        with pytest.raises(SettingError, match=rf"device is '{name}', which torch .* available: cpu.*use --device cpu"):
            check_device(name)


def test_ids_of_one_file_may_be_text_and_of_another_numbers() -> None:
    x = np.arange(3.0)[:, None]
    views = [PartyView("a", np.array([1, 2, 3]), x), PartyView("b", np.array(["3", "2", "1"]), x)]
    ids, aligned, labels = align(views, SampleLabels(np.array([0, 1, 0]), np.array(["2", "1", "3"])))
    assert ids.tolist() == ["2", "1", "3"]
    assert [view.raw[:, 0].tolist() for view in aligned] == [[1, 0, 2], [1, 2, 0]]  # type: ignore[index]
    assert labels is not None


def test_ids_that_are_missing_are_shown_as_plain_values() -> None:
    x = np.arange(2.0)[:, None]
    with pytest.raises(DataError, match=r"view 'b' lacks 1 \(such as 2\)") as caught:
        align([PartyView("a", np.array([1, 2]), x), PartyView("b", np.array([1, 3]), x)], None)
    assert "np." not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_taken_with_gradients_and_in_any_precision(dtype: torch.dtype) -> None:
    tensor = torch.tensor(DATA.local, dtype=dtype, requires_grad=True)
    values = tensor.detach().float()
    values = values / values.sum(dim=-1, keepdim=True)
    labels, strong = torch.tensor(DATA.labels), torch.tensor(DATA.strong)
    router = gr.ConfidenceRouter(0.2).fit(tensor, labels, strong)
    plain = gr.ConfidenceRouter(0.2).fit(values.numpy(), DATA.labels, DATA.strong)
    assert router.threshold_ == pytest.approx(plain.threshold_)
    decision = router.route([tensor[0], tensor[1]])
    one_hot = torch.eye(3, dtype=torch.bfloat16)[strong[torch.from_numpy(decision.escalate)]].requires_grad_()
    answer = router.answer(decision, one_hot)
    np.testing.assert_array_equal(answer.prediction[decision.escalate], DATA.strong[decision.escalate])


def test_zero_epochs_are_refused() -> None:
    with pytest.raises(SettingError, match="epochs is 0; at least 1 epoch is needed"):
        FitSettings(epochs=0)


def test_a_file_that_cannot_be_written_names_the_folder_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "out.npz"
    folder = re.escape(str(target.parent))
    with pytest.raises(StorageError, match=rf"could not be written \(.*\) in the folder {folder}; .* may write to"):
        write_bytes(target, b"x")
    with pytest.raises(StorageError, match=rf"the folder {folder} cannot be written to \(.*\); choose another one"):
        writable_folder(target.parent)


def test_a_damaged_npz_is_named_wherever_the_damage_is(tmp_path: Path) -> None:
    good = tmp_path / "good.npz"
    np.savez_compressed(good, local_posteriors=DATA.local, labels=DATA.labels)
    whole, bad = good.read_bytes(), tmp_path / "bad.npz"
    for place in range(4, len(whole), 37):
        bad.write_bytes(whole[:place] + bytes(b ^ 0xFF for b in whole[place : place + 8]) + whole[place + 8 :])
        with suppress(DataError):  # some places hold nothing that matters, and no other error may come
            read_table(bad)
    bad.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"bad.npz is not an .npz file, or truncated"):
        load_outcomes(bad)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(ResumableCommand, "interrupted; the same command resumes"), (Command, "interrupted\n")],
)
def test_an_interrupted_run_says_that_the_same_command_resumes(kind: type[Command], message: str) -> None:
    app = typer.Typer()

    @app.command(cls=kind)
    def stopped() -> None:
        raise KeyboardInterrupt

    done = CliRunner().invoke(app)
    assert done.exit_code == 130
    assert message in done.stderr


MESSAGES: dict[str, Any] = {
    "budget": lambda: gr.ConfidenceRouter(np.float64(2)),
    "folds": lambda: gr.ConfidenceRouter(folds=np.int64(0)),
    "threshold": lambda: gr.ConfidenceRouter(threshold=np.float64("nan")),
    "lam": lambda: gr.ExpectedGainRouter(lam=np.float64(-1)),
    "byte_budget": lambda: gr.PartialEscalation(np.float64(-1)),
    "labels": lambda: gr.ConfidenceRouter().fit(DATA.local, DATA.labels + 0.5, DATA.strong),
    "names": lambda: gr.ConfidenceRouter().fit(DATA.local, DATA.labels.astype(str), DATA.strong),
    "classes": lambda: gr.ConfidenceRouter(classes=["a", "b", "c"]).fit(DATA.local, DATA.labels, DATA.strong),
    "rate": lambda: operating_point([0.9], [0], [1], [1], rate=np.float64(0.5), threshold=0.0),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_no_message_shows_numpy_s_own_spelling_of_a_number(case: str) -> None:
    with pytest.raises((GainrouteError, LabelError)) as caught:
        MESSAGES[case]()
    assert "np." not in str(caught.value), caught.value
