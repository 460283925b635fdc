"""The command line as a user meets it: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import fake_package
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import gainroute as gr
from gainroute.cli import app
from gainroute.cli import compare as comparing
from gainroute.errors import MissingExtraError


def draw(n: int, k: int = 3, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    z = rng.normal(size=(2, n, k))
    z[:, np.arange(n), labels] += 1.2
    local = np.exp(z) / np.exp(z).sum(axis=2, keepdims=True)
    right = rng.random(n) < np.linspace(1.0, 0.7, k)[labels]
    return {
        "local_posteriors": local,
        "labels": labels,
        "strong_prediction": np.where(right, labels, (labels + 1) % k),
        "ids": np.arange(n) + 100,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A calibration set, a holdout, new data without labels, and a fitted router."""
    made: Path = tmp_path_factory.mktemp("cli")
    np.savez(made / "calib.npz", **draw(400))
    np.savez(made / "holdout.npz", **draw(300, seed=1))
    new = draw(50, seed=2)
    np.savez(made / "new.npz", local_posteriors=new["local_posteriors"], ids=new["ids"])
    done = run("fit", made / "calib.npz", "--out", made / "router.safetensors")
    assert done.exit_code == 0, done.stderr
    return made


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, [str(a) for a in args])


def parsed(*args: Any) -> Any:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def refused(*args: Any) -> str:
    """What is said on stderr: one paragraph, exit code 2, nothing on stdout, no traceback."""
    done = run(*args)
    assert done.exit_code == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("gainroute: "), done.stderr
    assert "Traceback" not in done.stderr
    return str(last)


# ---- the program --------------------------------------------------------------------------------


def test_the_program_runs_as_a_process(folder: Path) -> None:
    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gainroute", *args]
        env = {**os.environ, "PYTHONIOENCODING": "ascii"}  # a terminal that knows no τ
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)

    done = call("route", "router.safetensors", "new.npz", "--out", "made/d.npz", "--json")
    assert (done.returncode, json.loads(done.stdout)["samples"]) == (0, 50)
    assert (folder / "made/d.npz").exists()
    wrong = call("route", "nothing.safetensors", "new.npz", "--out", "d.npz")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("gainroute: nothing.safetensors: no such file")


def test_importing_the_library_imports_no_terminal_code() -> None:
    code = "import sys, gainroute; print([m for m in ('typer', 'rich', 'pyarrow', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("command", ["fit", "plan", "route", "explain", "compare", "demo"])
def test_every_command_explains_itself_and_speaks_json(command: str) -> None:
    text = run(command, "--help").stdout
    assert "--json" in text
    assert len(text) > 300


def test_the_version_is_the_library_s() -> None:
    assert run("--version").stdout == f"gainroute {gr.__version__}\n"


def test_the_first_screen_names_the_order_of_things() -> None:
    text = run().output
    assert "gainroute demo" in text
    assert "..." not in text.partition("Commands:")[2]


def test_interrupting_ends_with_130(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "compare_routers", interrupted)
    done = run("compare", folder / "calib.npz")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "interrupted" in done.stderr


def test_a_bug_keeps_its_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "compare_routers", lambda *_, **__: 1 / 0)
    assert isinstance(run("compare", folder / "calib.npz").exception, ZeroDivisionError)


# ---- fit ----------------------------------------------------------------------------------------


def test_fit_prints_samples_a_class_and_the_rate_to_expect(folder: Path) -> None:
    done = run("fit", folder / "calib.npz", "--out", folder / "r.safetensors", "--budget", "0.3")
    data = draw(400)
    counts = np.bincount(data["labels"])
    assert f"0: {counts[0]}, 1: {counts[1]}, 2: {counts[2]}" in done.stdout
    assert "30.0 % of new samples escalated, 95 % interval" in done.stdout
    router = gr.load(folder / "r.safetensors")
    weak = (router.route(data["local_posteriors"]).weak_prediction == data["labels"]).mean()
    assert f"{100 * weak:.1f} % right" in done.stdout
    assert done.stderr == ""
    assert router.budget == 0.3


def test_fit_in_json_agrees_with_the_library(folder: Path) -> None:
    result = parsed("fit", folder / "calib.npz", "--out", folder / "r.safetensors", "--threshold", "certified")
    data = draw(400)
    router = gr.ExpectedGainRouter(0.2, threshold="certified")
    router.fit(data["local_posteriors"], data["labels"], data["strong_prediction"])
    assert result["threshold"] == router.threshold_
    assert result["expected_rate"] == router.expected_rate_[0]
    assert result["strong_accuracy"] == pytest.approx((data["strong_prediction"] == data["labels"]).mean())


def test_fit_prints_the_guarantee(folder: Path) -> None:
    args = ("fit", folder / "calib.npz", "--out", folder / "r.safetensors", "--kept-error", "0.2")
    done = run(*args, "--threshold", "certified-error", "--confidence", "0.9")
    promised = gr.load(folder / "r.safetensors").guarantee_
    assert f"guarantee        {promised.text}\n" in done.stdout
    assert "(budget" not in done.stdout
    result = parsed(*args, "--threshold", "certified-both", "--budget", "0.99")
    assert (result["guarantee"]["budget"], result["guarantee"]["kept_error"]) == (0.99, 0.2)
    assert "promises nothing" in refused(*args)
    assert "cannot both be certified" in refused(*args, "--threshold", "certified-both", "--budget", "0.001")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (["--router", "paper"], "ExpectedGainRouter"),
        (["--router", "confidence", "--threshold", "-0.5"], "ConfidenceRouter"),
        (["--router", "calibrated-confidence", "--calibration", "temperature"], "CalibratedConfidenceRouter"),
        (["--router", "learned-gain", "--threshold", "calibration"], "LearnedGainRouter"),
        (["--router", "random", "--seed", "3"], "RandomRouter"),
        (["--lam", "cv", "--shrinkage", "empirical-bayes", "--min-gain", "0", "--eps", "1e-4"], "ExpectedGainRouter"),
    ],
)
def test_every_router_can_be_fitted_and_loaded(folder: Path, options: list[str], kind: str) -> None:
    parsed("fit", folder / "calib.npz", "--out", folder / "r.safetensors", *options)
    assert type(gr.load(folder / "r.safetensors")).__name__ == kind


def test_a_defer_router_is_fitted_on_messages_with_one_output_more(folder: Path) -> None:
    data = draw(200)
    outputs = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 200))
    np.savez(folder / "defer.npz", **{**data, "local_posteriors": outputs})
    result = parsed("fit", folder / "defer.npz", "--out", folder / "defer.safetensors", "--router", "defer")
    assert result["classes"] == 3
    assert parsed("plan", folder / "defer.safetensors", folder / "defer.npz")["gain_ends"] is None


def test_a_budget_of_zero_is_valid_json(folder: Path) -> None:
    assert parsed("fit", folder / "calib.npz", "--out", folder / "r.safetensors", "--budget", "0")["threshold"] == "inf"


@pytest.mark.parametrize("form", ["csv", "named", "npy"])
def test_a_utility_is_read_from_a_table(folder: Path, form: str) -> None:
    u = np.array([[1.0, 0, 0], [0, 1, 0], [-3, 0, 2]])
    path = folder / f"u.{'npy' if form == 'npy' else 'csv'}"
    if form == "npy":
        np.save(path, u)
    elif form == "csv":
        path.write_text("1,0,0\n0,1,0\n-3,0,2\n")
    else:
        path.write_text("truth,a,b,c\na,1,0,0\nb,0,1,0\nc,-3,0,2\n")
    parsed("fit", folder / "calib.npz", "--out", folder / "u.safetensors", "--utility", path)
    np.testing.assert_array_equal(gr.load(folder / "u.safetensors").settings()["utility"], u)
    result = parsed("plan", folder / "u.safetensors", folder / "holdout.npz")
    assert result["measure"] == "utility"
    assert "mean" not in run("plan", folder / "u.safetensors", folder / "holdout.npz", "--no-figure").stderr


def test_text_labels_go_through_class_names(folder: Path) -> None:
    data = draw(200)
    names = np.array(["ant", "bee", "cat"])
    named = {**data, "labels": names[data["labels"]], "strong_prediction": names[data["strong_prediction"]]}
    np.savez(folder / "named.npz", **named)
    assert "labels holds text" in refused("fit", folder / "named.npz", "--out", folder / "n.safetensors")
    result = parsed("fit", folder / "named.npz", "--out", folder / "n.safetensors", "--classes", "ant,bee,cat")
    assert set(result["samples_by_class"]) == {"ant", "bee", "cat"}
    assert gr.load(folder / "n.safetensors").classes.tolist() == ["ant", "bee", "cat"]  # type: ignore[union-attr]
    # A holdout of column numbers, and one of names, mean the same to that router.
    np.savez(folder / "numbered.npz", **data)
    by_name, by_number = (parsed("plan", folder / "n.safetensors", folder / f) for f in ("named.npz", "numbered.npz"))
    assert by_name["budgets"] == by_number["budgets"]
    assert "bee" in by_name["budgets"][0]["recall"]


def test_classes_in_the_wrong_order_are_refused(folder: Path) -> None:
    labels = np.arange(200) % 3
    names = np.array(["ant", "bee", "cat"])
    path = folder / "swapped.npz"
    np.savez(
        path, local_posteriors=0.1 + 0.7 * np.eye(3)[labels], labels=names[labels], strong_prediction=names[labels]
    )
    swapped = ("fit", path, "--out", folder / "s.safetensors", "--router", "confidence", "--classes", "bee,ant,cat")
    message = refused(*swapped)
    assert "column 0 looks like class 'ant', not 'bee'" in message
    assert "likely order: ant, bee, cat" in message
    assert parsed(*swapped, "--no-check-class-order")["weak_accuracy"] < 0.5


# ---- plan ---------------------------------------------------------------------------------------


def test_plan_prints_a_table_and_draws_a_picture(folder: Path) -> None:
    done = run(
        "plan", folder / "router.safetensors", folder / "holdout.npz", "--dimensions", "64,32", "--cost-weak", "0.5",
        "--cost-strong", "2", "--target-accuracy", "0.8",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    for text in (
        "budget",
        "95 % interval",
        "bytes per sample",
        "cost per sample",
        "Recall",
        "Knee:",
        "Gain",
        "Target:",
        "As saved:",
    ):
        assert text in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if " %" in line]
    assert {"0", "5", "10", "20", "30", "40", "60", "80", "100"} <= set(rows)
    picture = folder / "router-plan.png"
    assert str(picture) in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plan_in_json_agrees_with_the_library_and_draws_only_if_asked(folder: Path) -> None:
    (folder / "router-plan.png").unlink(missing_ok=True)
    args = ("plan", folder / "router.safetensors", folder / "holdout.npz", "--dimensions", "64,32")
    result = parsed(*args, "--cost-weak", "0.5", "--cost-strong", "2")
    assert result["figure"] is None
    assert not (folder / "router-plan.png").exists()
    data = draw(300, seed=1)
    decision = gr.load(folder / "router.safetensors").route(data["local_posteriors"])
    point = gr.evaluation.operating_point(
        decision.score, decision.weak_prediction, data["strong_prediction"], data["labels"], rate=0.2
    )
    at = next(b for b in result["budgets"] if b["rate"] == 0.2)
    assert at["accuracy"] == pytest.approx(point.accuracy)
    assert at["bytes"] == gr.communication_cost(3, [64, 32], 0.2)
    assert at["cost"] == pytest.approx(0.9)
    assert parsed(*args, "--figure", folder / "pictures" / "p.svg")["figure"] == str(folder / "pictures" / "p.svg")
    assert (folder / "pictures" / "p.svg").exists()


def test_plan_certifies_the_error_of_kept_answers(folder: Path) -> None:
    args = ("plan", folder / "router.safetensors", folder / "holdout.npz")
    result = parsed(*args, "--kept-error", "0.2", "--confidence", "0.9")
    promised, data = result["guarantee"], draw(300, seed=1)
    decision = gr.load(folder / "router.safetensors").route(data["local_posteriors"])
    kept = decision.score <= float(promised["threshold"])
    wrong = (decision.weak_prediction != data["labels"])[kept].sum()
    assert (promised["kept"], promised["wrong"], promised["samples"]) == (kept.sum(), wrong, 300)
    assert result["kept_error"]["rate"] == pytest.approx(1 - kept.mean())
    assert result["no_guarantee"] is None
    both = parsed(*args, "--kept-error", "0.2", "--max-budget", "0.99")["guarantee"]
    assert (both["budget"], both["kept_error"], both["confidence"]) == (0.99, 0.2, 0.95)
    assert (
        f"Kept error: {100 * (1 - kept.mean()):.3g}" in run(*args, "--kept-error", "0.2", "--confidence", "0.9").stdout
    )
    none = parsed(*args, "--kept-error", "0.001")
    assert (none["guarantee"], none["kept_error"]) == (None, None)
    assert "2995 kept ones are needed" in none["no_guarantee"]
    assert "Kept error: a kept error of 0.02 cannot be certified" in run(*args, "--kept-error", "0.02").stdout
    assert "--max-budget needs --kept-error" in refused(*args, "--max-budget", "0.3")
    saved = folder / "promise.safetensors"
    run("fit", folder / "calib.npz", "--out", saved, "--threshold", "certified-error", "--kept-error", "0.2")
    assert f"Saved with a guarantee: {gr.load(saved).guarantee_.text} Here, " in run("plan", saved, *args[2:]).stdout


def test_many_classes_show_the_lowest_recalls(folder: Path) -> None:
    np.savez(folder / "many.npz", **draw(600, k=12))
    run("fit", folder / "many.npz", "--out", folder / "many.safetensors", "--calibration", "temperature")
    done = run("plan", folder / "many.safetensors", folder / "many.npz", "--no-figure")
    assert "lowest recalls" in done.stdout
    assert "Figure:" not in done.stdout


def test_skewed_classes_are_noted_and_nothing_is_marked(folder: Path) -> None:
    data = draw(400)
    data["labels"][:385] = 0
    np.savez(folder / "skewed.npz", **data)
    done = run("plan", folder / "router.safetensors", folder / "skewed.npz", "--no-figure")
    assert "note: more than 90 % of the samples are of class 0" in done.stderr
    assert "Knee" not in done.stdout
    assert "Gain" not in done.stdout
    result = parsed("plan", folder / "router.safetensors", folder / "skewed.npz")
    assert (result["knee"], result["gain_ends"], result["skewed"], len(result["warnings"])) == (None, None, True, 1)


def test_without_matplotlib_the_table_still_comes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("plan", folder / "router.safetensors", folder / "holdout.npz")
    assert done.exit_code == 0
    assert "pip install 'gainroute[plots]', or in a checkout pip install '.[plots]'" in done.stdout
    args = ("plan", folder / "router.safetensors", folder / "holdout.npz", "--figure", folder / "x.png")
    assert "gainroute[plots]" in refused(*args)


# ---- route and explain --------------------------------------------------------------------------


def test_route_writes_what_the_library_decides(folder: Path) -> None:
    done = run("route", folder / "router.safetensors", folder / "new.npz", "--out", folder / "d.npz")
    decision = gr.load(folder / "router.safetensors").route(draw(50, seed=2)["local_posteriors"])
    assert f"{decision.escalate.sum()} of 50 samples are escalated" in done.stdout
    with np.load(folder / "d.npz", allow_pickle=False) as file:
        assert set(file.files) == {
            "ids", "escalate", "score", "weak_prediction", "pooled", "calibrated", "incomplete", "threshold",
        }  # fmt: skip
        np.testing.assert_array_equal(file["escalate"], decision.escalate)
        assert file["ids"][0] == 100


def test_route_flags_samples_that_lack_a_party(folder: Path) -> None:
    present = np.ones((2, 50), dtype=bool)
    present[0, :5] = False
    np.savez(folder / "gaps.npz", local_posteriors=draw(50, seed=2)["local_posteriors"], present=present)
    args = (folder / "router.safetensors", folder / "gaps.npz")
    assert "5 lack a party" in run("route", *args, "--out", folder / "d.parquet").stdout
    table = pq.read_table(folder / "d.parquet").to_pydict()
    assert sum(table["incomplete"]) == 5
    assert not any(table["escalate"][:5])
    assert "row 0 of" in refused("explain", *args, "--row", "0")


def test_route_takes_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("many").mkdir()
    for i in range(3):
        local = draw(50, seed=i)["local_posteriors"]
        columns = {f"posterior_{party}": local[party].tolist() for party in range(2)}
        pq.write_table(pa.table({**columns, "weak_prediction": [0] * 50}), f"many/{i}.parquet")
    result = parsed("route", "router.safetensors", "many", "--out", "made", "--columns", "score", "--processes", "1")
    assert (result["samples"], result["files"], result["kept"], result["rate"]) == (
        150,
        3,
        0,
        result["escalated"] / 150,
    )
    assert len(result["warnings"]) == 1
    assert "weak_prediction in the files is not used" in result["warnings"][0]
    assert pq.read_table("made/1.parquet").column_names == ["id", "escalate", "score", "incomplete"]
    for given in (["many/*.parquet"], [f"many/{i}.parquet" for i in range(3)]):
        done = run("route", "router.safetensors", *given, "--out", "made", "--columns", "score")
        assert f"{result['escalated']} of 150 samples are escalated" in done.stdout
        assert done.stdout.endswith("Decisions: made (3 of 3 files were complete before)\n")
    single = ("route", "router.safetensors", "many/0.parquet", "--out")
    assert parsed(*single, "one.parquet", "--columns", "score")["samples"] == 50
    whole, piece = (pq.read_table(path, partitioning=None) for path in ("one.parquet", "made/0.parquet"))
    assert whole.equals(piece)
    Path("empty").mkdir()
    parsed(*single, "empty")
    assert [path.name for path in Path("empty").iterdir()] == ["0.parquet"]
    job = ("route", "router.safetensors", "many", "--out", "other")
    assert "--on was given with many files" in refused(*job, "--on", "id")
    assert "columns has 'scores'; allowed are" in refused(*job, "--columns", "scores")
    assert "no data were given" in refused("route", "router.safetensors", "--out", "made")


def test_a_weak_answer_of_one_s_own_is_needed_again(folder: Path) -> None:
    data = draw(200)
    np.savez(folder / "own.npz", **data, weak_prediction=np.zeros(200, dtype=int))
    parsed("fit", folder / "own.npz", "--out", folder / "own.safetensors")
    assert "has no weak_prediction" in refused(
        "route", folder / "own.safetensors", folder / "new.npz", "--out", folder / "d.npz"
    )
    assert parsed("route", folder / "own.safetensors", folder / "own.npz", "--out", folder / "d.npz")["warnings"] == []
    unused = parsed("route", folder / "router.safetensors", folder / "own.npz", "--out", folder / "d.npz")
    assert "is not used" in unused["warnings"][0]


def test_explain_takes_a_score_apart(folder: Path) -> None:
    args = ("explain", folder / "router.safetensors", folder / "new.npz")
    result = parsed(*args, "--row", "3")
    assert sum(c["contribution"] for c in result["classes"]) == pytest.approx(result["score"])
    assert parsed(*args, "--id", "103")["score"] == result["score"]
    text = run(*args, "--row", "3").stdout
    assert "Row 3 (id 103) is" in text
    assert "(weak answer)" in text
    assert f"{result['score']:+.4f}" in text


# ---- compare ------------------------------------------------------------------------------------


def test_compare_runs_every_router_and_one_of_the_user_s(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine_cli.py").write_text(
        "import gainroute as gr\n"
        "class Mine(gr.Router):\n"
        "    def score(self, round_one):\n"
        "        return round_one.pooled[:, 0]\n"
        "nothing = 3\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = parsed("compare", "calib.npz", "--router", "mine_cli:Mine", "--folds", "2", "--budgets", "0.1,0.5")
    names = [row["name"] for row in result["routers"]]
    assert names[-2:] == ["mine_cli:Mine", "oracle (needs labels)"]
    assert names[0] == "ours (routing only)"
    assert len(names) == 13
    assert len(result["routers"][0]["interval"]) == 2
    assert "the module mine_cli has no Yours" in refused("compare", "calib.npz", "--router", "mine_cli:Yours")
    assert "derived from gainroute.Router" in refused("compare", "calib.npz", "--router", "mine_cli:nothing")
    assert "module:Class" in refused("compare", "calib.npz", "--router", "mine_cli")
    assert "No module named" in refused("compare", "calib.npz", "--router", "nowhere_to_be_found:X")


def test_a_router_of_an_installed_package_is_fitted_compared_and_routes_by_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(fake_package.install_parts(folder))
    out = folder / "theirs.safetensors"
    fitted = parsed("fit", folder / "calib.npz", "--out", out, "--router", "their-margin", "--budget", "0.3")
    assert fitted["router"] == "their-margin"
    assert type(gr.load(out)).__module__ == "their_parts"
    parsed("route", out, folder / "new.npz", "--out", folder / "decisions.npz")
    parsed("fit", folder / "calib.npz", "--out", out, "--calibration", "their-calibrator", "--pooling", "their-pool")
    assert type(gr.load(out).calibrator_).__module__ == "their_parts"
    compared = parsed("compare", folder / "calib.npz", "--router", "their-margin", "--folds", "2", "--budgets", "0.2")
    assert "their-margin" in [row["name"] for row in compared["routers"]]
    refusal = refused("fit", folder / "calib.npz", "--out", out, "--router", "their-margin", "--lam", "2")
    assert "--lam does not apply to --router their-margin; it applies to expected-gain" in refusal


def test_compare_says_plainly_who_wins_or_that_none_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"expected-gain (paper)": gr.ExpectedGainRouter.paper, "confidence": gr.ConfidenceRouter}
    monkeypatch.setattr(comparing, "candidates", lambda _: few)
    rng = np.random.default_rng(0)
    local = rng.dirichlet([1, 1], size=(1, 200))
    same = {"labels": rng.integers(2, size=200), "strong_prediction": local[0].argmax(axis=1)}  # both routes agree
    np.savez(folder / "noise.npz", local_posteriors=local, **same)
    assert "None beats confidence beyond its interval" in run("compare", folder / "noise.npz").stdout
    local = np.full((1, 2000, 2), 0.5)
    local[0, :, 1] += rng.choice([-0.2, 0.3], size=2000)
    local[0, :, 0] = 1 - local[0, :, 1]
    labels = (rng.random(2000) < np.where(local[0, :, 1] > 0.5, 0.6, 0.02)).astype(int)
    np.savez(folder / "signal.npz", local_posteriors=local, labels=labels, strong_prediction=labels)
    done = run("compare", folder / "signal.npz")
    assert "expected gain beats confidence beyond its interval at" in done.stdout
    assert done.stderr == ""


# ---- files --------------------------------------------------------------------------------------


def test_one_file_a_party_is_joined_and_the_unmatched_are_reported(folder: Path) -> None:
    data = draw(300, k=2)
    ids = np.arange(300)
    for i, name in enumerate("ab"):
        table = {"customer_id": ids[i * 5 :], "posterior": data["local_posteriors"][i, i * 5 :, 1]}
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    answers = {"customer_id": ids, "label": data["labels"], "strong_prediction": data["strong_prediction"]}
    pq.write_table(pa.table(answers), folder / "y.parquet")
    joined = ("--posteriors", folder / "a.parquet", folder / "b.parquet", "--on", "customer_id")
    result = parsed("fit", *joined, "--labels", folder / "y.parquet", "--out", folder / "j.safetensors")
    assert (result["samples"], result["parties"]) == (295, ["a", "b"])
    assert "5 of" in result["warnings"][0]
    done = run("route", folder / "j.safetensors", *joined, "--out", folder / "d.npz")
    assert done.exit_code == 0
    assert "note: samples whose customer_id is not in every file are left out" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("fit", "calib.npz", "--out", "x", "--budget", "20"), "budget is 20.0; it lies in [0, 1]"),
        (("fit", "calib.npz", "--out", "x", "--threshold", "best"), "--threshold is 'best'; a number or one"),
        (("fit", "calib.npz", "--out", "x", "--lam", "-1"), "lam is -1.0"),
        (("fit", "calib.npz", "--out", "x", "--lam", "big"), "--lam is 'big'; a number or one of cv"),
        (("fit", "calib.npz", "--out", "x", "--calibration", "platt"), "calibration is 'platt'; allowed are"),
        (("fit", "calib.npz", "--out", "x", "--shrinkage", "much"), "shrinkage is 'much'; allowed are"),
        (("fit", "calib.npz", "--out", "x", "--router", "magic"), "--router is 'magic'; allowed are expected-gain"),
        (("fit", "calib.npz", "--out", "x", "--router", "paper", "--lam", "2"), "--lam does not apply to"),
        (("fit", "calib.npz", "--out", "x", "--utility", "no.csv"), "no.csv: no such file"),
        (("fit", "calib.npz", "--out", "x", "--utility", "bad.csv"), "bad.csv has the entry 'many'"),
        (("fit", "calib.npz", "--out", "x", "--utility", "ragged.csv"), "ragged.csv has rows of [2, 3] entries"),
        (("fit", "calib.npz", "--out", "x", "--utility", "small.csv"), "utility has shape (2, 2); (3, 3) is needed"),
        (("fit", "calib.npz", "--out", "x", "--utility", "bad.npy"), "bad.npy is not a .npy file"),
        (("fit", "calib.npz", "--out", "x", "--budget", "0.001", "--threshold", "certified"), "cannot certify"),
        (("fit", "new.npz", "--out", "x"), "new.npz has no labels; it has local_posteriors, ids"),
        (("fit", "--out", "x"), "no data were given"),
        (("fit", "calib.npz", "--posteriors", "a.parquet", "--out", "x"), "both DATA (calib.npz) and --posteriors"),
        (("fit", "calib.npz", "--on", "id", "--out", "x"), "--labels and --on join"),
        (("fit", "missing.npz", "--out", "x"), "missing.npz: no such file"),
        (("fit", "bad.csv", "--out", "x"), "neither .npz nor Parquet"),
        (("fit", "nan.npz", "--out", "x"), "has NaN"),
        (("fit", "logits.npz", "--out", "x"), "did you pass logits"),
        (("fit", "label9.npz", "--out", "x"), "label9.npz: labels[0] is 9"),
        (("fit", "calib.npz", "--out", "calib.npz/x"), "calib.npz"),
        (("plan", "calib.npz", "holdout.npz"), "not a safetensors file, or truncated"),
        (("plan", "no.safetensors", "holdout.npz"), "no such file"),
        (("plan", "cut.safetensors", "holdout.npz"), "not a safetensors file, or truncated"),
        (("plan", "router.safetensors", "new.npz"), "new.npz has no labels"),
        (("plan", "router.safetensors", "wide.npz"), "has 4 classes, 3 were expected"),
        (("plan", "router.safetensors", "holdout.npz", "--dimensions", "64"), "--dimensions lists 1 length(s)"),
        (("plan", "router.safetensors", "holdout.npz", "--dimensions", "a,b"), "whole numbers separated by commas"),
        (("plan", "router.safetensors", "holdout.npz", "--dimensions", "0,64"), "embeddings of one value or more"),
        (("plan", "router.safetensors", "holdout.npz", "--cost-weak", "1"), "go together"),
        (("plan", "router.safetensors", "holdout.npz", "--cost-weak", "-1", "--cost-strong", "1"), "0 or more"),
        (("plan", "router.safetensors", "holdout.npz", "--budgets", "x"), "--budgets is 'x'"),
        (("plan", "router.safetensors", "holdout.npz", "--target-accuracy", "90"), "target_accuracy is 90.0"),
        (("plan", "router.safetensors", "holdout.npz", "--figure", "p.gif"), "a picture ends in .png, .svg or .pdf"),
        (("route", "router.safetensors", "party1.npz", "--out", "x"), "the router was fitted with 2"),
        (("explain", "router.safetensors", "new.npz"), "Give one of --row"),
        (("explain", "router.safetensors", "new.npz", "--row", "50"), "has the rows 0 to 49"),
        (("explain", "router.safetensors", "new.npz", "--id", "x"), "has no such id: they look like 100, 101, 102"),
        (("explain", "router.safetensors", "no_ids.npz", "--id", "x"), "no_ids.npz has no ids"),
        (("explain", "confidence.safetensors", "new.npz", "--row", "1"), "holds a ConfidenceRouter"),
        (("compare", "calib.npz", "--folds", "1"), "folds is 1"),
        (("compare", "new.npz"), "new.npz has no labels"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_2_and_one_paragraph(
    folder: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    _bad_files(folder)
    assert message in refused(*args)


def _bad_files(folder: Path) -> None:
    if (folder / "cut.safetensors").exists():
        return
    data = draw(60)
    (folder / "bad.csv").write_text("1,0,0\n0,1,many\n0,0,1\n")
    (folder / "ragged.csv").write_text("1,0,0\n0,1\n0,0,1\n")
    (folder / "small.csv").write_text("1,0\n0,1\n")
    (folder / "bad.npy").write_text("no")
    local = data["local_posteriors"].copy()
    local[0, 0, 0] = np.nan
    np.savez(folder / "nan.npz", **{**data, "local_posteriors": local})
    np.savez(folder / "logits.npz", **{**data, "local_posteriors": np.log(data["local_posteriors"])})
    np.savez(folder / "label9.npz", **{**data, "labels": np.full(60, 9)})
    np.savez(folder / "wide.npz", **draw(60, k=4))
    np.savez(folder / "no_ids.npz", local_posteriors=data["local_posteriors"])
    np.savez(folder / "party1.npz", local_posteriors=data["local_posteriors"][:1])
    gr.save(
        gr.ConfidenceRouter().fit(data["local_posteriors"], data["labels"], data["strong_prediction"]),
        folder / "confidence.safetensors",
    )
    whole = (folder / "router.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[: len(whole) // 2])


# ---- demo ---------------------------------------------------------------------------------------


def test_the_demo_is_called_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    fake: Any = types.ModuleType("gainroute.experiments.demo")

    def run_demo(out: Path, *, seed: int = 0, progress: bool = True) -> dict[str, float]:
        seen.append((out, seed))
        return {"weak": 0.9}

    fake.run_demo = run_demo
    fake.print_demo = lambda results, console: console.print(f"weak {results['weak']}")
    monkeypatch.setitem(sys.modules, "gainroute.experiments.demo", fake)
    assert run("demo", "--out", tmp_path, "--seed", "3").stdout == "weak 0.9\n"
    assert seen == [(tmp_path, 3)]
    assert parsed("demo", "--out", tmp_path)["weak"] == 0.9


def test_the_demo_without_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("gainroute.experiments.demo")

    def missing(*_: Any, **__: Any) -> None:
        raise MissingExtraError("training", "torch")

    fake.run_demo = fake.print_demo = missing
    monkeypatch.setitem(sys.modules, "gainroute.experiments.demo", fake)
    assert "pip install 'gainroute[torch]'" in refused("demo", "--out", tmp_path)


def test_fit_and_plan_with_pooling_and_blend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=1200)

    def said(knows: float) -> np.ndarray:
        logits = rng.normal(size=(1200, 4)) + knows * np.eye(4)[labels]
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    np.savez("c.npz", local_posteriors=np.stack([said(2.0), said(2.0)]), labels=labels, strong_posterior=said(2.0))
    parsed("fit", "c.npz", "--out", "r.safetensors", "--pooling", "log-linear", "--blend", "cv")
    router = gr.load("r.safetensors")
    assert router.blends_
    data = np.load("c.npz")
    decision = router.route(data["local_posteriors"])
    best = (router.strong_answers(decision, data["strong_posterior"]) == labels).mean()
    assert best > (data["strong_posterior"].argmax(axis=1) == labels).mean() + 0.03
    rows = parsed("plan", "r.safetensors", "c.npz", "--budgets", "1.0")["budgets"]
    assert rows[-1]["accuracy"] == pytest.approx(best, abs=1e-6)
    assert "allowed are 'mean', 'log-linear'" in refused("fit", "c.npz", "--out", "x", "--pooling", "median")


def test_fit_learns_from_the_training_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    mixing = np.eye(4) + 0.5 * rng.normal(size=(4, 4))

    def drawn(samples: int) -> dict[str, Any]:
        labels = rng.integers(4, size=samples)
        logits = (rng.normal(size=(2, samples, 4)) + 2 * np.eye(4)[labels]) @ mixing
        return {"local_posteriors": np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True), "labels": labels}

    held = drawn(120)
    np.savez("c.npz", **held, strong_prediction=held["labels"])
    np.savez("t.npz", **drawn(3000))
    parsed("fit", "c.npz", "--out", "alone.safetensors")
    parsed("fit", "c.npz", "--out", "helped.safetensors", "--training", "t.npz", "--training-weight", "1")
    new = drawn(4000)
    alone, helped = (
        (gr.load(name).route(new["local_posteriors"]).weak_prediction == new["labels"]).mean()
        for name in ("alone.safetensors", "helped.safetensors")
    )
    assert helped > alone + 0.005
    np.savez("three.npz", local_posteriors=np.full((3, 9, 4), 0.25), labels=np.zeros(9, dtype=int))
    np.savez("unlabelled.npz", local_posteriors=np.full((2, 9, 4), 0.25))
    for more, message in (
        (("--training", "three.npz"), "three.npz has the parties party 0, party 1, party 2"),
        (("--training", "unlabelled.npz"), "unlabelled.npz has no labels"),
        (("--training", "t.npz", "--pooling", "mean"), "--training is t.npz, which only the expected-gain router"),
        (("--training", "t.npz", "--router", "confidence"), "--training is t.npz, which only the expected-gain router"),
        (("--training-weight", "much"), "--training-weight is 'much'"),
    ):
        assert message in refused("fit", "c.npz", "--out", "x", *more)


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        environment = {"_GAINROUTE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return CliRunner().invoke(app, [], env=environment, prog_name="gainroute").stdout.split()

    assert {"compare", "coordinator"} <= set(completed("gainroute co"))
    assert "--budget" in completed("gainroute fit --bu")


def test_the_hint_for_a_missing_extra_works_from_an_index_and_from_a_checkout() -> None:
    message = str(MissingExtraError("training", "torch"))
    assert message.endswith("pip install 'gainroute[torch]', or in a checkout pip install '.[torch]'")
