"""`gainroute recalibrate`: from a decision log to a better router, or a refusal that says what the log lacks."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from synthetic import World, world
from typer.testing import CliRunner

import gainroute as gr
from gainroute._util.hashing import hash_contents
from gainroute.cli import app
from gainroute.federation.coordinator.decision_log.rows import insert_rows
from gainroute.federation.coordinator.decision_log.schema import connect, decision_id, migrate
from gainroute.federation.coordinator.decision_log.store import give_feedback


def _drifted(w: World, seed: int = 1) -> np.ndarray:
    """The strong route gets class 4, its best, wrong from now on."""
    spoiled = (w.labels == 4) & (np.random.default_rng(seed).random(len(w.labels)) < 0.9)
    return np.where(spoiled, (w.labels + 1) % 5, w.strong)


def _write(
    folder: Path, *, explore: float = 0.1, posteriors: bool = True, labelled: float = 1.0, n: int = 3000
) -> tuple[Path, Path, World]:
    fit, now = world(n=1500, seed=0), world(n=n, seed=5)
    router = gr.ExpectedGainRouter(0.2).fit(fit.local, fit.labels, fit.strong)
    artifact, log = folder / "router.safetensors", folder / "decisions.sqlite"
    gr.save(router, artifact)
    decision = gr.BudgetController(router, explore=explore).route(now.local)
    strong = _drifted(now)
    told = np.random.default_rng(2).random(n) < labelled
    with closing(connect(str(log))) as connection:
        migrate(connection, str(log))
        connection.execute("BEGIN")
        for i in range(n):
            asked = bool(decision.escalate[i])
            row = {
                "seq": i + 1, "sample_id": str(i), "request_id": "r", "time": 1000.0 + i,
                "local": now.local[:, i].astype("<f4").tobytes() if posteriors else None,
                "pooled": None, "strong": None, "score": float(decision.score[i]),
                "threshold": float(decision.thresholds[i]), "probability": float(decision.probability[i]),
                "route": "round2" if asked else "round1",
                "label": int(strong[i] if asked else decision.weak_prediction[i]),
                "weak_prediction": int(decision.weak_prediction[i]),
                "strong_prediction": int(strong[i]) if asked else None,
                "router": hash_contents(artifact), "bytes": 0, "latency": 0.0,
                "explored": int(decision.explored[i]) if explore else None, "capped": 0,
            }  # fmt: skip
            insert_rows(connection, {name: [value] for name, value in row.items()})
            if told[i]:
                give_feedback(connection, int(now.labels[i]), "local", decision=decision_id(i + 1))
        connection.execute("COMMIT")
    return artifact, log, now


def _run(artifact: Path, log: Path, *more: str) -> tuple[int, str, str]:
    arguments = ["recalibrate", str(artifact), "--log", str(log), "--out", str(artifact.parent / "new.safetensors")]
    done = CliRunner().invoke(app, [*arguments, *more])
    return done.exit_code, done.stdout, done.stderr


def test_a_drift_of_the_strong_route_is_learned_from_the_log(tmp_path: Path) -> None:
    artifact, log, _ = _write(tmp_path)
    code, out, err = _run(artifact, log, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["labels"] == told["decisions"] == 3000
    assert 0.15 < told["rate"] < 0.25
    assert set(told["comparison"]) >= {"difference", "low", "high", "verdict"}
    old, new = gr.load(artifact), gr.load(tmp_path / "new.safetensors")
    assert new.reliability_[4] < 0.4 < 0.9 < old.reliability_[4]
    later = world(n=8000, seed=9)
    strong = _drifted(later, seed=3)
    right = {}
    for name, router in (("old", old), ("new", new)):
        score = router.route(later.local).score
        rows = np.argsort(-score)[: len(score) // 5]
        answer = np.asarray(router.route(later.local).weak_prediction).copy()
        answer[rows] = strong[rows]
        right[name] = (answer == later.labels).mean()
    assert right["new"] > right["old"]


def test_the_table_says_what_changed(tmp_path: Path) -> None:
    code, out, _ = _run(*_write(tmp_path)[:2])
    assert code == 0
    assert "mean reliability" in out
    assert "3,000 labels on 3,000 decisions" in out
    assert "On decisions held back" in out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"explore": 0.0}, "had no chance of being escalated"),
        ({"posteriors": False}, "holds no posteriors"),
        ({"labelled": 0.03}, "labelled decisions"),
    ],
)
def test_a_log_that_cannot_teach_is_refused_and_nothing_is_written(
    tmp_path: Path, settings: dict[str, float], words: str
) -> None:
    artifact, log, _ = _write(tmp_path, **settings)
    code, _, err = _run(artifact, log)
    assert code == 2
    assert words in " ".join(err.split())
    assert not (tmp_path / "new.safetensors").exists()


def test_decisions_of_another_router_and_a_missing_log_are_refused(tmp_path: Path) -> None:
    artifact, log, now = _write(tmp_path, n=50)
    gr.save(gr.ExpectedGainRouter(0.4).fit(now.local, now.labels, now.strong), tmp_path / "other.safetensors")
    code, _, err = _run(tmp_path / "other.safetensors", log)
    assert code == 2
    assert "50 are of other routers" in " ".join(err.split())
    code, _, err = _run(artifact, tmp_path / "none.sqlite")
    assert code == 2
    assert "no such decision log" in " ".join(err.split())


def test_a_degraded_answer_teaches_nothing(tmp_path: Path) -> None:
    artifact, log, _ = _write(tmp_path)
    with closing(sqlite3.connect(log)) as connection:
        connection.execute("UPDATE decisions SET route = 'degraded:missing:a' WHERE seq <= 1000")
        connection.commit()
    code, out, err = _run(artifact, log, "--json")
    assert code == 0, err
    assert json.loads(out)["decisions"] == 2000
