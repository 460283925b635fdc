"""A party that hangs: requests wait for it a few times, then no more, until it answers a probe."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from fake_federation import IDS, federation, running
from waiting import until

from gainroute.errors import SettingError
from gainroute.federation.coordinator.circuit import Circuit
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.federation.coordinator.settings import RoundSettings
from gainroute.federation.transport.base import PartyRefusedError


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_it_opens_after_timeouts_in_a_row_and_is_probed_at_intervals():
    clock = Clock()
    circuit = Circuit(3, 5.0, clock)
    for sample in "ab":
        circuit.late(sample)
    circuit.answered()  # not in a row
    for sample in "abc":
        assert circuit.state == "closed"
        circuit.late(sample)
    assert (circuit.state, circuit.sample) == ("open", "c")
    assert "3 requests in a row" in circuit.reason
    assert not circuit.probe()
    clock.now = 5.0
    assert circuit.probe()
    assert circuit.state == "half-open"
    circuit.late("c")
    assert circuit.state == "open"
    assert not circuit.probe()
    clock.now = 10.0
    assert circuit.probe()
    circuit.answered()
    assert circuit.state == "closed"
    assert not circuit.probe()


def test_without_a_number_of_failures_it_stays_closed():
    circuit = Circuit(0, 5.0, Clock())
    for _ in range(100):
        circuit.late("a")
    assert circuit.state == "closed"


@pytest.mark.parametrize("wrong", [{"circuit_failures": -1}, {"circuit_seconds": 0.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        RoundSettings(**wrong)


# ---- in the service ---------------------------------------------------------------------------------


class Hanging:
    """Holds back the answers of a party in some rounds, while it still describes itself."""

    def __init__(self, party):
        self.rounds, self.party, self._answer = set(), party, party._answer
        party._answer = self.answer

    async def answer(self, number, ids, model, request_id):
        if number + 1 in self.rounds:
            self.party.calls.append((number + 1, len(ids), model, request_id))
            await asyncio.Event().wait()
        return await self._answer(number, ids, model, request_id)

    def asked(self, number):
        return sum(call[0] == number for call in self.party.calls)


@asynccontextmanager
async def hanging(folder, **rounds):
    rounds = {"one_seconds": 0.05, "two_seconds": 0.05, "health_seconds": 3600.0, "circuit_failures": 2, **rounds}
    fed = federation(folder).having(rounds={"on_missing_party": "pool", **rounds})
    party, clock = Hanging(fed.parties[0]), Clock()
    async with running(fed) as run:
        for link in run.coordinator.parties.links.values():
            for circuit in link.circuits.values():
                circuit._clock = clock
        run.check = lambda: run.coordinator.parties.check_health(run.coordinator.deployment)
        yield run, party, clock


async def seen(run):
    """State and circuits of the party, as shown by /api/status and /metrics."""
    status, metrics = (await run.status())["parties"][0], (await run.client.get("/metrics")).text
    for number in (1, 2):
        is_open = float(status["circuit"][f"round{number}"] != "closed")
        assert f'gainroute_party_circuit_open{{party="a",round="{number}"}} {is_open}' in metrics
    return status["state"], status["circuit"]["round1"], status["circuit"]["round2"]


def test_a_party_that_hangs_delays_a_few_requests_and_no_more_until_it_answers_a_probe(tmp_path):
    async def main():
        async with hanging(tmp_path) as (run, party, clock):
            assert await seen(run) == ("ok", "closed", "closed")
            party.rounds = {1}
            for _ in range(2):
                assert set((await run.answers(IDS[:5]))["route"]) == {"degraded:absent:a"}
            assert await seen(run) == ("unavailable", "open", "closed")
            for _ in range(3):  # not asked, hence not waited for
                assert set((await run.answers(IDS[:5]))["route"]) == {"degraded:absent:a"}
            assert party.asked(1) == 2
            await run.check()  # it still describes itself
            assert await seen(run) == ("unavailable", "open", "closed")
            clock.now = 5.0
            await run.check()  # the probe is not answered
            assert party.asked(1) == 3
            assert await seen(run) == ("unavailable", "open", "closed")
            party.rounds = set()
            await run.check()  # the next one is not due
            assert set((await run.answers(IDS[:5]))["route"]) == {"degraded:absent:a"}
            clock.now = 10.0
            await run.check()
            assert await seen(run) == ("ok", "closed", "closed")
            probe = party.party.calls[-1]
            assert (probe[:2], probe[3].startswith("probe-")) == ((1, 1), True)
            assert "degraded:absent:a" not in set((await run.answers(IDS[:5]))["route"])

    asyncio.run(main())


def test_by_the_policy_to_refuse_the_refusal_comes_at_once_and_names_the_party(tmp_path):
    async def main():
        async with hanging(tmp_path, on_missing_party="refuse") as (run, party, _):
            party.rounds = {1}
            for _ in range(3):
                reply = await run.infer(IDS[:5])
                assert (reply.status_code, reply.json()["code"]) == (503, "party_missing")
            assert party.asked(1) == 2
            assert "party 'a': did not answer 2 requests in a row" in reply.json()["error"]

    asyncio.run(main())


def test_round_2_has_a_circuit_of_its_own_and_then_no_party_is_asked_for_embeddings(tmp_path):
    async def main():
        async with hanging(tmp_path) as (run, party, clock):
            party.rounds = {2}
            for _ in range(2):
                assert "degraded:round2:late:a" in set((await run.answers(IDS))["route"])
            assert await seen(run) == ("unavailable", "closed", "open")
            others = sum(call[0] == 2 for call in run.federation.parties[1].calls)
            assert set((await run.answers(IDS))["route"]) == {"round1", "degraded:round2:late:a"}
            assert party.asked(2) == 2
            assert sum(call[0] == 2 for call in run.federation.parties[1].calls) == others
            assert await seen(run) == ("ok", "closed", "open")
            party.rounds = set()
            clock.now = 5.0
            await run.check()
            assert await seen(run) == ("ok", "closed", "closed")
            assert [call[0] for call in party.party.calls[-2:]] == [1, 2]  # an embedding follows Round 1
            assert set((await run.answers(IDS))["route"]) == {"round1", "round2"}

    asyncio.run(main())


def test_a_probe_that_is_refused_closes_it_since_the_party_answers(tmp_path):
    async def main():
        async with hanging(tmp_path) as (run, party, clock):
            party.rounds = {1}
            for _ in range(2):
                await run.answers(IDS[:5])
            party.rounds = set()
            party.party.error = (PartyRefusedError("a", "its model is broken"), None)
            clock.now = 5.0
            await run.check()
            assert (await seen(run))[1] == "closed"

    asyncio.run(main())


def test_the_coordinator_itself_probes_in_the_background_and_logs_what_it_asked_for(tmp_path):
    noted = []

    async def main():
        async with hanging(tmp_path, health_seconds=0.02) as (run, party, clock):
            party.rounds = {1}
            for _ in range(2):
                await run.answers(IDS[:5])
            run.coordinator.log.asked = lambda *entry: noted.append(entry)
            clock.now = 5.0
            party.rounds = set()
            await until(lambda: noted)
            assert run.coordinator.parties.links["a"].state == "ok"

    asyncio.run(main())
    ((name, number, samples, without),) = noted
    assert (name.startswith("probe-"), number, samples, without) == (True, 1, 1, ["b", "c"])


def test_a_check_that_its_transport_cancels_does_not_end_the_health_checks():
    class Cancelled:
        name = "a"

        async def describe(self):
            raise asyncio.CancelledError

    links = PartyLinks([Cancelled()], RoundSettings())
    assert asyncio.run(links.check_health(None)) == []
    assert links.links["a"].state == "unavailable"
    assert "cancelled" in links.links["a"].error
