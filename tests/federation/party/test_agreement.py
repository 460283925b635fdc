"""The agreed share of escalations: a coordinator that wants every embedding does not get them."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from party_helpers import MODEL, Federation, GatedParty, StubParty, connected, serving
from waiting import until

from gainroute.errors import SettingError
from gainroute.federation.party.agreement import Agreement
from gainroute.federation.party.settings import AgreementSettings
from gainroute.federation.transport.base import PartyAgreementError


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


class Counted:
    """An agreement with a clock that is set."""

    def __init__(self, share=0.2, **how):
        self.now = 0.0
        self.agreement = Agreement(AgreementSettings(escalation_share=share, **{"burst": 0, **how}), lambda: self.now)

    def ask(self, *ids, who="main"):
        self.agreement.asked(who, map(str, ids))

    def take(self, *ids, who="main", model="m"):
        return self.agreement.take(who, model, list(map(str, ids)))

    def drain(self, ids, **how):
        """Embeddings that a coordinator gets which asks for one after the other."""
        return sum(not self.take(i, **how) for i in ids)


# ---- the count --------------------------------------------------------------------------------------


def test_an_embedding_needs_round_1_within_the_window():
    counted = Counted(1.0, window_seconds=60.0)
    assert "not asked for in Round 1 within the last 60 s" in counted.take(1)
    counted.ask(1, 2)
    assert counted.take(1) == ""
    assert counted.take(1, 3).startswith("1 of 2 samples")
    assert counted.take(2, who="another").startswith("1 of 1 samples")
    counted.now = 60.0
    assert counted.take(2).startswith("1 of 1 samples")


def test_a_share_of_the_samples_and_no_more():
    counted = Counted(0.2)
    counted.ask(*range(791))
    assert counted.drain(range(791)) == 158
    assert "158 embeddings were given for 791 samples" in counted.take(790)
    assert counted.take(3) == ""  # it has this one already
    assert counted.take(*range(791)).endswith("the agreed share of 0.2 (and 0 more)")


def test_the_burst_serves_the_first_few_samples():
    counted = Counted(0.2, burst=5)
    counted.ask(*range(10))
    assert counted.drain(range(10)) == 7


def test_the_same_ids_again_raise_nothing():
    counted = Counted(0.2)
    for second in range(50):
        counted.now = float(second)
        counted.ask(*range(20), *range(20))
    assert counted.drain(range(20)) == 4


def test_other_model_versions_raise_nothing():
    counted = Counted(0.2)
    for _ in "abcde":
        counted.ask(*range(100))
    assert sum(counted.drain(range(100), model=model) for model in "abcde") == 20


def test_asking_for_everything_yields_the_share_once_per_window():
    counted = Counted(0.2, window_seconds=600.0)
    counted.ask(*range(100))
    assert counted.drain(range(100)) == 20
    for second in (100.0, 300.0, 599.0):
        counted.now = second
        counted.ask(*range(100))
        assert counted.drain(range(20, 100)) == 0
    counted.now = 600.0
    assert counted.drain(range(20, 100)) == 20


def test_memory_is_bounded_and_the_share_holds_for_what_is_remembered():
    counted = Counted(0.2, max_ids=100)
    given = 0
    for start in range(0, 1000, 10):
        counted.ask(*range(start, start + 10))
        given += counted.drain(range(start, start + 10))
        counted.now += 1.0
    (counts,) = counted.agreement._counts.values()
    assert len(counts.asked.times) == 100
    assert len(counts.given.times) <= 22
    assert given == 200
    assert counted.take(5).startswith("1 of 1 samples")


@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "take", "wait"]), st.lists(st.integers(0, 30), min_size=1, max_size=12)),
        max_size=60,
    ),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_whatever_the_order_embeddings_never_exceed_the_share_of_a_window(actions, share):
    counted, asked, given = Counted(share, burst=2, window_seconds=10.0), [], []
    for kind, ids in actions:
        if kind == "wait":
            counted.now += len(ids)
        elif kind == "ask":
            counted.ask(*ids)
            asked += [(counted.now, i) for i in ids]
        elif not counted.take(*ids):
            given += [(counted.now, i) for i in ids]
            recent = {i for then, i in asked if then > counted.now - 10}
            assert set(ids) <= recent
            assert len({i for then, i in given if then > counted.now - 10}) <= share * len(recent) + 2


def test_lifted_while_a_coordinator_trains_and_for_no_one_else():
    counted = Counted(0.0)
    with counted.agreement.lifted("main"):
        with counted.agreement.lifted("main"):
            assert counted.take(1, 2, 3) == ""
        assert counted.take(4) == ""
        assert counted.take(4, who="another")
    assert counted.take(1)


@pytest.mark.parametrize(
    "wrong",
    [{"escalation_share": 1.5}, {"window_seconds": 0.0}, {"burst": -1}, {"max_ids": 0}],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=f"agreement.{list(wrong)[-1]}"):
        AgreementSettings(**{"escalation_share": 0.2, **wrong})


# ---- over the wire ----------------------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def outcomes(settings):
    lines = map(json.loads, settings.audit.path.read_text().splitlines())
    return [(line["round"], line["count"], line["outcome"]) for line in lines]


def test_a_party_gives_its_share_audits_what_it_refuses_and_goes_on(federation):
    settings = federation.settings(agreement=AgreementSettings(escalation_share=0.2, burst=0))
    ask = {"model": MODEL, "request_id": "r"}

    async def main():
        async with serving(settings, StubParty()) as node, connected(federation, node) as connection:
            with pytest.raises(PartyAgreementError, match="embeddings follow Round 1"):
                await connection.embeddings([1], codec="float32", **ask)
            strangers = [f"nobody{i}" for i in range(1000)]
            await connection.posteriors([*range(50), *strangers], **ask)  # invented ids raise nothing
            await connection.embeddings(list(range(10)), codec="float32", **ask)
            with pytest.raises(PartyAgreementError, match=r"10 embeddings were given for 50 samples"):
                await connection.embeddings([11], codec="float32", **ask)
            await connection.embeddings([3], codec="int8", **ask)
            await connection.posteriors([1], **ask)

    run(main())
    assert outcomes(settings) == [
        (2, 1, "agreement"), (1, 1050, "answered"), (2, 10, "answered"), (2, 1, "agreement"), (2, 1, "answered"),
        (1, 1, "answered"),
    ]  # fmt: skip


def test_requests_at_the_same_time_share_one_allowance(federation):
    settings = federation.settings(agreement=AgreementSettings(escalation_share=0.2, burst=0), workers=4)
    ask = {"model": MODEL, "request_id": "r"}

    async def main():
        async with serving(settings, StubParty()) as node, connected(federation, node) as connection:
            await connection.posteriors(list(range(50)), **ask)
            asked = [connection.embeddings([i], codec="float32", **ask) for i in range(50)]
            return await asyncio.gather(*asked, return_exceptions=True)

    found = run(main())
    assert sum(isinstance(reply, PartyAgreementError) for reply in found) == 40


def test_a_round_1_that_was_withdrawn_does_not_count(federation):
    party = GatedParty()
    settings = federation.settings(agreement=AgreementSettings(escalation_share=1.0))
    ask = {"model": MODEL, "request_id": "r"}

    async def main():
        async with serving(settings, party) as node, connected(federation, node) as connection:
            first = asyncio.ensure_future(connection.posteriors([1], **ask))
            await until(party.entered.is_set)
            first.cancel()
            await until(lambda: (1, 1, "cancelled") in outcomes(settings))
            party.gate.set()
            with pytest.raises(PartyAgreementError):
                await connection.embeddings([1], codec="float32", **ask)

    run(main())


def test_without_the_table_there_is_no_limit(federation):
    async def main():
        async with serving(federation.settings(), StubParty()) as node, connected(federation, node) as connection:
            await connection.embeddings(list(range(50)), model=MODEL, codec="float32", request_id="r")

    run(main())
