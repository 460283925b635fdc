"""Parties that change: honest streams are quiet, a party that lies is named, and only that one."""

from __future__ import annotations

import json
from math import isnan

import numpy as np
import pytest
from synthetic import world as any_world

import gainroute as gr
from gainroute.control.change_test import BETS, bet
from gainroute.control.party_drift import PartyMonitor
from gainroute.errors import SettingError
from gainroute.routing.party_statistics import PartyStatistics, pairwise_agreement


def world(n, parties, classes, seed=0):
    """Parties that agree on about half of the samples."""
    return any_world(n, parties, classes, seed, strength=4.0)


def reference(parties=3, n=2000):
    return PartyStatistics.of(world(n, parties, 4, seed=7).local)


def lying(data, *parties):
    """Valid posteriors for another class."""
    local = data.local.copy()
    for party in parties:
        local[party] = np.roll(local[party], 1, axis=1)
    return local


def named(monitor):
    return [i for i, party in enumerate(monitor.report()) if party.changed]


def test_agreement_is_the_probability_that_a_draw_from_each_is_the_same_class():
    local = world(50, 3, 4).local
    agreement = pairwise_agreement(local)
    np.testing.assert_allclose(agreement[0, 2], (local[0] * local[2]).sum(axis=1))
    np.testing.assert_allclose(agreement[2, 0], agreement[0, 2])
    np.testing.assert_array_equal(agreement[1, 1], 1.0)
    weight = np.random.default_rng(0).random(50)
    found = PartyStatistics.of(local, weight)
    np.testing.assert_allclose(found.agreement[0, 2], np.average(agreement[0, 2], weights=weight))
    np.testing.assert_allclose(found.confidence, np.average(local.max(axis=2), axis=1, weights=weight))
    assert found.samples == pytest.approx(weight.sum() ** 2 / (weight**2).sum())


def test_bets_in_chunks_are_the_sequential_test():
    monitor = PartyMonitor(2, reference(2), horizon=1000)
    stream = world(500, 2, 4, seed=3).local
    monitor.observe(stream)
    slack = monitor._z * monitor.reference.agreement_error[0, 1]
    money = np.zeros(len(BETS))
    for value in pairwise_agreement(stream)[0, 1] - (monitor.reference.agreement[0, 1] - slack):
        money = bet(money, np.array(value), np.array(BETS))
    np.testing.assert_allclose(monitor._money[0], money, rtol=1e-9)


@pytest.mark.parametrize("parties", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_on_honest_streams_at_most_one_run_in_a_hundred_names_a_party(parties):
    """At most 1 % of the runs are expected to, over 10,000 samples: normal means, and Ville's inequality."""
    runs = 100
    alarms = 0
    for seed in range(runs):
        fitted, stream = world(400, parties, 4, seed=2 * seed), world(10_000, parties, 4, seed=2 * seed + 1)
        monitor = PartyMonitor(parties, PartyStatistics.of(fitted.local))
        monitor.observe(stream.local)
        alarms += bool(named(monitor))
    assert alarms <= 0.01 * runs + 1


@pytest.mark.parametrize("parties", [3, 4, 5])
def test_a_party_that_lies_is_named_within_a_few_hundred_samples_and_no_other(parties):
    monitor = PartyMonitor(parties, reference(parties))
    monitor.observe(world(3000, parties, 4, seed=1).local)
    assert named(monitor) == []
    monitor.observe(lying(world(400, parties, 4, seed=2), 1))
    assert named(monitor) == [1]
    monitor.observe(lying(world(10_000, parties, 4, seed=3), 1))
    assert named(monitor) == [1]
    (found,) = [party for party in monitor.report() if party.changed]
    assert found.changed == ("agreement",)
    assert found.agreement < found.reference_agreement - 0.1
    assert "agreement with the others" in str(found)


def test_two_colluding_liars_of_five_are_named_and_the_honest_ones_are_not():
    monitor = PartyMonitor(5, reference(5))
    monitor.observe(lying(world(3000, 5, 4, seed=2), 0, 3))
    assert named(monitor) == [0, 3]


def test_of_two_parties_either_may_have_changed():
    monitor = PartyMonitor(2, reference(2))
    monitor.observe(lying(world(1000, 2, 4, seed=2), 1))
    assert named(monitor) == [0, 1]


@pytest.mark.parametrize("power", [0.2, 5.0])
def test_a_party_that_becomes_more_or_less_confident_is_named(power):
    monitor = PartyMonitor(3, reference())
    local = world(2000, 3, 4, seed=2).local.copy()
    local[2] **= power
    local[2] /= local[2].sum(axis=1, keepdims=True)
    monitor.observe(local)
    assert named(monitor) == [2]
    assert "confidence" in monitor.report()[2].changed
    assert "confidence" in str(monitor.report()[2])


def test_samples_that_lack_a_party_are_left_out():
    monitor = PartyMonitor(3, reference())
    local = world(100, 3, 4).local.copy()
    local[1, :40] = np.nan
    monitor.observe(local)
    assert monitor.samples == 60
    local[:] = np.nan
    monitor.observe(local)
    assert monitor.samples == 60


def test_without_a_reference_the_first_samples_are_it():
    monitor = PartyMonitor(3, window=500)
    monitor.observe(world(300, 3, 4, seed=1).local)
    assert monitor.report() == []
    monitor.observe(world(300, 3, 4, seed=2).local)
    assert all(isnan(party.agreement) for party in monitor.report())
    monitor.observe(lying(world(1000, 3, 4, seed=3), 2))
    assert named(monitor) == [2]
    monitor.reset()
    assert monitor.report() == []


@pytest.mark.parametrize("given", [True, False])
def test_a_restart_changes_nothing(given):
    how = {"reference": reference()} if given else {"window": 300}
    whole, first = PartyMonitor(3, **how), PartyMonitor(3, **how)
    before, after = world(400, 3, 4, seed=1).local, lying(world(200, 3, 4, seed=2), 0)
    first.observe(before)
    second = PartyMonitor(3, **how)
    second.restore(json.loads(json.dumps(first.state())))
    for monitor, parts in ((whole, (before, after)), (second, (after,))):
        for part in parts:
            monitor.observe(part)
    assert whole.report() == second.report()
    with pytest.raises(SettingError, match="3 parties"):
        PartyMonitor(2).restore(first.state())


def test_one_party_alone_is_not_monitored():
    monitor = PartyMonitor(1, PartyStatistics.of(world(100, 1, 4).local))
    monitor.observe(world(100, 1, 4).local)
    assert monitor.report() == []


def test_a_router_carries_the_reference_of_its_calibration(tmp_path):
    data = world(600, 3, 4)
    router = gr.ExpectedGainRouter(0.2).fit(data.local, data.labels, data.strong)
    gr.save(router, tmp_path / "router.safetensors")
    found, expected = gr.load(tmp_path / "router.safetensors").party_statistics_, PartyStatistics.of(data.local)
    np.testing.assert_allclose(found.agreement, expected.agreement)
    np.testing.assert_allclose(found.confidence, expected.confidence)
    assert found.samples == pytest.approx(600)
