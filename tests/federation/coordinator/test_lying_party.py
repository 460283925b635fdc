"""A party that sends valid but false posteriors: it changes many answers, and is named."""

from __future__ import annotations

import asyncio

import numpy as np
from fake_federation import IDS, federation, running

LIMITS = {"window": 100, "horizon": 10_000, "false_alarm": 0.01, "seconds": 3600.0}


def lie(values):
    """Swear to another class."""
    return (0.97 * np.roll(np.eye(values.shape[1])[values.argmax(axis=1)], 1, axis=1) + 0.03 / values.shape[1]).astype(
        np.float32
    )


async def seen(run):
    await run.coordinator.monitor.examine()
    status, metrics = await run.status(), (await run.client.get("/metrics")).text
    return status, metrics, [alarm["text"] for alarm in status["alarms"] if alarm["name"] == "parties"]


def test_a_party_that_lies_is_named_in_the_alarm_the_status_and_the_metrics(tmp_path):
    fed = federation(tmp_path).having(drift=LIMITS)

    async def main():
        async with running(fed) as run:
            honest = await run.answers(IDS)
            for _ in range(4):
                await run.answers(IDS)
            quiet = await seen(run)
            fed.parties[1].change = (lie, None)
            changed = int((honest["label"] != (await run.answers(IDS))["label"]).sum())
            for _ in range(9):
                await run.answers(IDS)
            loud = await seen(run)
        async with running(fed) as run:  # an alarm survives a restart
            again = await seen(run)
            reset = await run.admin("drift", {"reset": True})
            return quiet, changed, loud, again, reset, await seen(run)

    (quiet, metrics, none), changed, loud, again, reset, after = asyncio.run(main())
    assert none == []
    assert set(quiet["drift"]["parties"]) == {"a", "b", "c"}
    assert 'gainroute_drift_party_changed{party="b"} 0.0' in metrics
    assert 'gainroute_drift_alarm{alarm="parties"} 0.0' in metrics
    assert changed > 20
    for status, metrics, (text,) in (loud, again):
        assert text.startswith("party 'b': confidence 0.98, not 0.72")
        assert "party 'a'" not in text
        assert "party 'c'" not in text
        assert [name for name, party in status["drift"]["parties"].items() if party["changed"]] == ["b"]
        assert 'gainroute_drift_party_changed{party="b"} 1.0' in metrics
        assert 'gainroute_drift_party_changed{party="a"} 0.0' in metrics
        assert 'gainroute_drift_alarm{alarm="parties"} 1.0' in metrics
    assert reset.status_code == 200
    assert after[2] == []


def test_a_router_of_an_earlier_version_learns_the_reference_from_its_first_samples(tmp_path):
    fed = federation(tmp_path).having(drift=LIMITS)

    async def main():
        async with running(fed) as run:
            run.coordinator.deployment.router.party_statistics_ = None
            run.coordinator.monitor.drift._monitor = None  # as if it had been loaded so
            await run.answers(IDS)
            first = await seen(run)
            fed.parties[1].change = (lie, None)
            for _ in range(10):
                await run.answers(IDS)
            return first, await seen(run)

    first, (_, _, (text,)) = asyncio.run(main())
    assert first[0]["drift"]["parties"].keys() == {"a", "b", "c"}
    assert text.startswith("party 'b'")


def test_without_the_drift_monitor_nothing_is_kept(tmp_path):
    fed = federation(tmp_path).having(drift={"enabled": False})

    async def main():
        async with running(fed) as run:
            await run.answers(IDS)
            assert run.coordinator.monitor._local == []
            return (await run.status())["drift"]

    assert asyncio.run(main())["enabled"] is False
