"""The soak's verdict: it holds for what is right, and each thing that goes wrong is found by its own check."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak.checks import judge
from benchmarks.soak.disturbed import latencies
from benchmarks.soak.load import Answered, Load, Refused
from benchmarks.soak.seen import Down, Happened, Logged, Seen
from benchmarks.soak.world import make_world

(
    ANSWERED, UNMARKED, MARKED, ABSENT, BACK, LATENCY, RESTARTING, FULL, ROTATED, CAUSED, HOSTILE, LOGGED, MEMORY,
    ENDED,
) = range(14)  # fmt: skip
MINUTE, HOUR = 60.0, 3600.0
NORTH = Down("north", 20.0, 25.0, 27.0)
CENTRE = Down("the coordinator", 38.0, 38.1, 41.0)
SOUTH = Down("south", 43.0, 46.0, 46.0)
DISK = Down("the coordinator", 31.0, 33.0, 33.0)
CERTIFICATES = Down("middle", 34.0, 34.0, 36.0)
TRICKS = {"junk token: 401": 9, "large headers: 431": 8, "malformed: 400": 7, "burst: 429": 6, "half-open: 408": 5,
          "slow body: 408": 4}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("soak"))


def answer(world, expected, rows, at, route=None):
    """What a coordinator that makes no mistake answers; decision ids tell time and row."""
    routes = ["round2" if e else "round1" for e in expected.escalated[rows]]
    return Answered(
        at, 1, at, at + 0.1, [world.ids[i] for i in rows], expected.label[rows].tolist(),
        expected.escalated[rows].tolist(), expected.score[rows].tolist(),
        routes if route is None else [route] * len(rows), [f"{at}-{i}" for i in rows],
        expected.probabilities[rows].copy(),
    )  # fmt: skip


@pytest.fixture
def seen(world):
    whole = world.replay()
    rows = np.arange(40)
    found = [answer(world, whole, rows, at) for at in (1.0, 30.0, 50.0)]
    for name, at in (("north", 22.0), ("south", 44.0)):
        found.append(answer(world, world.replay_first([name]), rows, at, f"degraded:absent:{name}"))
    load = Load(1, world.ids, ["token"], found, [Refused(32.0, "503"), Refused(39.0, "connection")])
    happened = Happened([NORTH], [CENTRE], [SOUTH], [DISK], [CERTIFICATES])
    memory = [(float(at), 100 * 2**20) for at in range(int(HOUR))]
    calm = [(0.0, 10.0), (55.0, MINUTE)]
    made = Seen(world, load, 0.0, MINUTE, calm, happened, TRICKS, memory, {"all": 0}, Path("none.sqlite"), "a disk")
    log(made)
    return made


def log(seen, leave_out=()):
    rows = {}
    for a in seen.load.answered:
        for name, sample, label, route in zip(a.decision_id, a.ids, a.label, a.route, strict=True):
            if name not in leave_out:
                rows[name] = Logged(sample, label, route)
    vars(seen)["rows"] = rows


def changed(seen, **changes):
    """Another soak, with the same log."""
    other = replace(seen, **changes)
    log(other)
    return other


def failed(seen):
    return [i for i, check in enumerate(judge(seen)) if check.held is False]


def test_what_is_right_holds(seen):
    assert failed(seen) == []
    assert [i for i, check in enumerate(judge(seen)) if check.held is None] == [LATENCY, RESTARTING, CAUSED, MEMORY]
    assert judge(seen)[MEMORY].seen.startswith("not checked")
    longer = changed(seen, end=HOUR)
    assert failed(longer) == []
    assert [i for i, check in enumerate(judge(longer)) if check.held is None] == [RESTARTING]


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
    del seen.load.answered[3:]
    log(seen)
    assert failed(seen) == [MARKED, ABSENT]


def test_a_frozen_party_counts_as_absent_too(seen):
    del seen.load.answered[4]
    log(seen)
    assert failed(seen) == [ABSENT]
    assert "no answer without south 43 s after the start" in judge(seen)[ABSENT].seen


def test_no_answer_is_expected_while_the_coordinator_restarts(seen):
    del seen.load.answered[4]
    other = changed(seen, happened=replace(seen.happened, coordinators=[replace(CENTRE, back=46.5)]))
    assert failed(other) == []


def test_a_restart_that_never_led_to_whole_answers_is_found(seen):
    del seen.load.answered[2]
    log(seen)
    assert failed(seen) == [BACK]


def test_a_lost_decision_and_one_logged_otherwise_are_found(seen):
    log(seen, leave_out=[seen.load.answered[0].decision_id[5]])
    assert failed(seen) == [LOGGED]
    log(seen)
    name = seen.load.answered[0].decision_id[5]
    seen.rows[name] = replace(seen.rows[name], label=-1)
    assert failed(seen) == [LOGGED]
    log(seen)
    seen.load.answered[0].decision_id[5] = seen.load.answered[0].decision_id[6]
    assert failed(seen) == [LOGGED]


def test_memory_is_judged_from_ten_minutes_on_since_the_last_restart(seen):
    def over(memory, killed=CENTRE):
        return failed(changed(seen, end=600.0, memory=memory, happened=replace(seen.happened, coordinators=[killed])))

    assert over(seen.memory) == []
    assert over([(at, size * (1.06 if at >= 540 else 1)) for at, size in seen.memory]) == [MEMORY]
    assert over([(at, size * (1.04 if at >= 540 else 1)) for at, size in seen.memory]) == []
    assert over([]) == [MEMORY]
    assert over(seen.memory, replace(CENTRE, back=400.0)) == [MEMORY]
    early = [(at, size * (0.9 if at < 200 else 1)) for at, size in seen.memory]
    assert over(early) == [MEMORY]
    assert over(early, replace(CENTRE, back=200.0)) == [], "another process"


def test_a_request_given_up_and_a_process_that_does_not_end_are_found(seen):
    seen.load.wrong.append("a request was given up")
    assert failed(seen) == [ANSWERED]
    seen.load.wrong.clear()
    assert failed(changed(seen, codes={"party north": -9})) == [ENDED]


# ---- the disturbances -----------------------------------------------------------------------------------


def slow(seen, seconds, at=48.0, **changes):
    """An hour in which a request took that long in the disturbed time."""
    before = answer(seen.world, seen.world.replay(), np.arange(3), at)
    late = replace(before, ended=at + seconds, **changes)
    return changed(seen, end=HOUR, load=replace(seen.load, answered=[*seen.load.answered, late]))


def test_the_tail_of_honest_clients_is_judged_from_ten_minutes_on(seen):
    assert failed(slow(seen, 0.29)) == []
    assert failed(slow(seen, 0.5)) == [LATENCY]
    assert "of 10 minutes or more" in judge(changed(slow(seen, 0.5), end=MINUTE))[LATENCY].seen
    assert failed(changed(seen, end=HOUR, calm=[])) == [LATENCY]


def test_waiting_counts_from_the_first_attempt(seen):
    assert failed(slow(seen, 0.2, first=47.0, tries=2)) == [LATENCY]


def test_requests_that_a_restart_or_a_full_disk_delayed_are_counted_apart(seen):
    restarted = slow(seen, 4.0, at=37.5)
    assert failed(restarted) == []
    assert "at most 4.0 s in all" in judge(restarted)[RESTARTING].seen
    refused = slow(seen, 3.0, at=31.5, tries=2)
    assert failed(refused) == []
    assert "1 requests (counted apart) took at most 3.0 s" in judge(refused)[FULL].seen
    assert failed(slow(seen, 3.0, at=31.5)) == [LATENCY], "not refused, and slow"


def test_latency_is_told_by_what_happened_meanwhile(seen):
    found = latencies(slow(seen, 3.0, at=31.5))
    assert found["full"] == {"requests": 1, "p50": 3000.0, "p99": 3000.0, "p100": 3000.0}
    assert {kind: told["requests"] for kind, told in found.items()} == {
        "undisturbed": 1, "hostile client only": 2, "full": 1, "parties": 1, "frozen": 1, "rotated": 1,
    }  # fmt: skip


def test_a_full_disk_has_to_be_noticed_and_recovered_from(seen):
    seen.load.refused[0] = Refused(29.0, "503")
    assert failed(seen) == [FULL]
    seen.load.refused[0] = Refused(32.0, "503")
    assert failed(changed(seen, happened=replace(seen.happened, full=[replace(DISK, begun=58.0)]))) == [FULL]
    assert failed(changed(seen, happened=replace(seen.happened, full=[]))) == [FULL]


def test_certificates_that_nobody_uses_are_found(seen):
    unused = replace(CERTIFICATES, back=math.inf)
    other = changed(seen, happened=replace(seen.happened, rotated=[CERTIFICATES, unused]))
    assert failed(other) == [ROTATED]
    assert "not in use: middle" in judge(other)[ROTATED].seen


def test_a_party_that_is_called_absent_without_cause_is_found(seen, world):
    first = world.replay_first(["middle"])
    found = answer(world, first, np.arange(3), 34.5, "degraded:absent:middle")
    other = changed(seen, load=replace(seen.load, answered=[*seen.load.answered, found]))
    assert failed(other) == []
    assert failed(changed(other, end=HOUR)) == [CAUSED]


@pytest.mark.parametrize("what", ["junk token: 200", "malformed: 500", "large headers: 400"])
def test_an_answer_that_a_hostile_client_must_not_get_is_found(seen, what):
    assert failed(changed(seen, hostile=TRICKS | {what: 1})) == [HOSTILE]


def test_tricks_that_take_long_are_judged_in_long_runs_only(seen):
    assert failed(changed(seen, end=HOUR)) == []
    left = {what: n for what, n in TRICKS.items() if not what.startswith(("half-open", "slow body"))}
    assert failed(changed(seen, hostile=left)) == []
    assert failed(changed(seen, hostile=left, end=HOUR)) == [HOSTILE]


def test_a_trick_that_was_never_answered_shows_nothing(seen):
    left = {what: n for what, n in TRICKS.items() if not what.startswith("burst")} | {"burst: connection": 3}
    assert failed(changed(seen, hostile=left)) == [HOSTILE]
