"""The soak's verdict: it holds for what is right, and each thing that goes wrong is found by its own check."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak.__main__ import plan
from benchmarks.soak.checks import Down, Seen, judge
from benchmarks.soak.load import Answered, Load
from benchmarks.soak.world import make_world

ANSWERED, UNMARKED, MARKED, ABSENT, BACK, LOGGED, MEMORY, ENDED = range(8)
MINUTE = 60.0
NORTH = Down("north", 20.0, 25.0, 27.0)
CENTRE = Down("the coordinator", 38.0, 38.1, 41.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("soak"))


def answer(world, expected, rows, at, route=None):
    """What a coordinator that makes no mistake answers; decision ids tell time and row."""
    routes = ["round2" if e else "round1" for e in expected.escalated[rows]]
    return Answered(
        at, at + 0.1, [world.ids[i] for i in rows], expected.label[rows].tolist(), expected.escalated[rows].tolist(),
        expected.score[rows].tolist(), routes if route is None else [route] * len(rows),
        [f"{at}-{i}" for i in rows], expected.probabilities[rows].copy(),
    )  # fmt: skip


@pytest.fixture
def seen(world):
    whole, first = world.replay(), world.replay_first(["north"])
    rows = np.arange(40)
    found = [answer(world, whole, rows, at) for at in (1.0, 30.0, 50.0)]
    found.append(answer(world, first, rows, 22.0, "degraded:absent:north"))
    load = Load(1, world.ids, found, Counter({"503": 2}), retried=2)
    memory = [(float(at), 100 * 2**20) for at in range(600)]
    made = Seen(world, load, 0.0, MINUTE, [NORTH], [CENTRE], memory, {"all": 0}, Path("none.sqlite"))
    log(made)
    return made


def log(seen, leave_out=()):
    rows = {}
    for a in seen.load.answered:
        for name, sample, label, route in zip(a.decision_id, a.ids, a.label, a.route, strict=True):
            if name not in leave_out:
                rows[name] = {"sample_id": sample, "label": label, "route": route}
    vars(seen)["rows"] = rows


def failed(seen):
    return [i for i, check in enumerate(judge(seen)) if check.held is False]


def test_what_is_right_holds(seen):
    assert failed(seen) == []
    assert judge(seen)[MEMORY].held is None
    assert judge(seen)[MEMORY].seen.startswith("not checked")


@pytest.mark.parametrize("what", ["label", "escalated", "score", "probabilities"])
def test_an_unmarked_answer_that_differs_is_found(seen, what):
    wrong = seen.load.answered[0]
    if what == "probabilities":
        wrong.probabilities[3, 0] += 0.01
    else:
        values = getattr(wrong, what)
        values[3] = {"label": (values[3] + 1) % 10, "escalated": not values[3], "score": values[3] + 0.001}[what]
    log(seen)
    assert failed(seen) == [UNMARKED]


def test_a_marked_answer_has_to_be_that_of_those_present(seen):
    seen.load.answered[3].label[0] = (seen.load.answered[3].label[0] + 1) % 10
    log(seen)
    assert failed(seen) == [MARKED]


@pytest.mark.parametrize("route", ["unknown", "degraded:unlogged", "degraded:absent:nobody", "degraded:missing:north"])
def test_a_mark_that_no_soak_may_see_is_found(seen, route):
    seen.load.answered[0].route[0] = route
    log(seen)
    assert failed(seen) == [MARKED]


def test_an_unmarked_answer_while_a_party_was_gone_is_found_even_where_it_is_right(seen, world):
    seen.load.answered.append(answer(world, world.replay(), np.arange(40, 50), 23.0))
    log(seen)
    assert failed(seen) == [ABSENT]


def test_without_degraded_answers_nothing_was_shown(seen):
    del seen.load.answered[3]
    log(seen)
    assert failed(seen) == [MARKED, ABSENT]


def test_a_restart_that_never_led_to_whole_answers_is_found(seen):
    del seen.load.answered[2]
    log(seen)
    assert failed(seen) == [BACK]


def test_a_lost_decision_and_one_logged_otherwise_are_found(seen):
    log(seen, leave_out=[seen.load.answered[0].decision_id[5]])
    assert failed(seen) == [LOGGED]
    log(seen)
    seen.rows[seen.load.answered[0].decision_id[5]]["label"] = -1
    assert failed(seen) == [LOGGED]
    log(seen)
    seen.load.answered[0].decision_id[5] = seen.load.answered[0].decision_id[6]
    assert failed(seen) == [LOGGED]


def test_memory_is_judged_from_five_minutes_on(seen):
    def over(memory, coordinators=(CENTRE,)):
        longer = replace(seen, end=600.0, memory=memory, coordinators=coordinators)
        log(longer)
        return failed(longer)

    assert over(seen.memory) == []
    assert over([(at, size * (1.06 if at >= 540 else 1)) for at, size in seen.memory]) == [MEMORY]
    assert over([(at, size * (1.04 if at >= 540 else 1)) for at, size in seen.memory]) == []
    assert over([]) == [MEMORY]
    late = replace(CENTRE, back=200.0)
    assert over(seen.memory, (late,)) == [MEMORY]


def test_a_request_given_up_and_a_process_that_does_not_end_are_found(seen):
    seen.load.wrong.append("a request was given up")
    assert failed(seen) == [ANSWERED]
    seen.load.wrong.clear()
    other = replace(seen, codes={"party north": -9})
    log(other)
    assert failed(other) == [ENDED]


def test_who_is_killed_when():
    assert [name for _, name in plan(1)] == ["north", ""]
    ten = plan(10)
    parties = [(at, name) for at, name in ten if name]
    assert [int(at // 60) for at, _ in parties] == list(range(10)), "one every minute"
    assert {name for _, name in parties} == {"north", "middle", "south"}
    assert [at < 180 for at, name in ten if not name] == [True, True]
