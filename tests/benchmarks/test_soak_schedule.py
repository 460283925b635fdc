"""The disturbances of a soak: the same for a seed, of every kind however short the run is, calm at both ends."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.soak.schedule import CENTRE, STEP_SECONDS, draw
from benchmarks.soak.world import PARTIES

LENGTHS = [1, 1.5, 3, 10, 60]


def test_a_seed_decides_everything():
    assert draw(10, seed=3) == draw(10, seed=3)
    assert draw(10, seed=3) != draw(10, seed=4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("minutes", LENGTHS)
def test_every_kind_happens_however_short_the_run_is(minutes, seed):
    found = draw(minutes, seed)
    assert {event.kind for event in found.parties} == {"kill", "freeze"}
    assert {event.kind for event in found.centre} == {"kill", "fill", "rotate"}
    assert {event.who for event in found.parties} <= set(PARTIES)
    assert {event.who for event in found.centre if event.kind != "rotate"} == {CENTRE}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("minutes", LENGTHS)
def test_both_ends_are_calm_and_a_track_is_in_order(minutes, seed):
    found = draw(minutes, seed)
    for track in (found.parties, found.centre):
        times = [event.at for event in track]
        assert times == sorted(times)
        assert found.first_calm <= times[0]
        assert times[-1] + track[-1].seconds < 60 * minutes - found.last_calm


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("minutes", [10, 60])
def test_the_coordinator_is_killed_early_so_that_its_memory_can_be_watched(minutes, seed):
    killed = [event.at for event in draw(minutes, seed).centre if event.kind == "kill"]
    assert killed[-1] < max(20 * minutes + STEP_SECONDS, 4 * 60 + STEP_SECONDS) <= 60 * minutes - 4 * 60


def test_an_hour_has_many_of_each():
    found = draw(60, seed=0)
    assert Counter(event.who for event in found.parties).keys() == set(PARTIES)
    count = Counter(event.kind for event in [*found.parties, *found.centre])
    assert all(count[kind] >= 10 for kind in ("kill", "freeze", "fill", "rotate"))
