"""One suite for every transport: what a coordinator can rely on, whatever transport connects it to a party."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest
from party_helpers import CLASSES, DIMENSION, MODEL, Federation, GatedParty, StubParty, link
from synthetic import world
from waiting import until

import gainroute as gr
from gainroute.federation.transport.base import ConnectedParty, PartyRefusedError, PartyUnavailableError
from gainroute.routing.payload import encode, round_trip

TRANSPORTS = ["in-process", "grpc"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    return Federation(tmp_path_factory.mktemp("federation"))


@pytest.fixture(params=TRANSPORTS)
def ask(request, federation):
    """Run a coroutine function with a connection to a party."""

    def run(party, work, **how):
        async def main():
            async with link(request.param, federation, party, **how) as connection:
                return await work(connection)

        return asyncio.run(asyncio.wait_for(main(), 30))

    return run


def posteriors(ids, model=MODEL):
    return lambda connection: connection.posteriors(ids, model=model, request_id="r")


def embeddings(ids, codec="float32", model=MODEL):
    return lambda connection: connection.embeddings(ids, model=model, codec=codec, request_id="r")


def test_a_party_describes_itself(ask):
    told = ask(StubParty(), lambda connection: connection.describe())
    assert (told.name, told.classes) == ("a", CLASSES)
    assert [(m.hash, m.dimension) for m in told.models] == [(MODEL, DIMENSION)]
    assert set(told.codecs) == {"float32", "float16", "int8"}


def test_posteriors_arrive_as_they_are_and_their_bytes_are_counted(ask):
    party = StubParty()
    reply = ask(party, posteriors([3, 1, 2]))
    np.testing.assert_array_equal(reply.values, party.p[[3, 1, 2]])
    assert reply.values.dtype == np.float32
    assert reply.payload_bytes == 3 * len(CLASSES) * 4


@pytest.mark.parametrize("ids", [["3", "1"], [3, 1], np.array([3, 1]), [np.int64(3), "1"], [b"3", b"1"]])
def test_ids_match_by_their_text(ask, ids):
    party = StubParty()
    np.testing.assert_array_equal(ask(party, posteriors(ids)).values, party.p[[3, 1]])


def test_unknown_ids_are_rows_of_nan_and_cost_nothing(ask):
    party = StubParty()
    reply = ask(party, posteriors([3, "nobody", 1, 999, "03"]))
    np.testing.assert_array_equal(reply.values[[0, 2]], party.p[[3, 1]])
    assert np.isnan(reply.values[[1, 3, 4]]).all()
    assert reply.payload_bytes == 2 * len(CLASSES) * 4
    nobody = ask(party, posteriors(["x", "y"]))
    assert np.isnan(nobody.values).all()
    assert nobody.values.shape == (2, len(CLASSES))
    assert nobody.payload_bytes == 0


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_embeddings_go_through_the_codec(ask, codec):
    party = StubParty()
    reply = ask(party, embeddings([5, "none", 7], codec))
    np.testing.assert_array_equal(reply.values[[0, 2]], round_trip(party.e[[5, 7]], codec))
    assert np.isnan(reply.values[1]).all()
    assert reply.payload_bytes == len(encode(party.e[[5, 7]], codec))


def test_versions_stand_side_by_side_and_each_request_names_one(ask):
    old, new = StubParty(seed=1), StubParty(seed=2)

    async def both(connection):
        calls = [posteriors([4], model)(connection) for model in ("old", "new", "old")]
        return [reply.values for reply in await asyncio.gather(*calls)]

    first, second, third = ask({"old": old, "new": new}, both)
    np.testing.assert_array_equal(first, old.p[[4]])
    np.testing.assert_array_equal(second, new.p[[4]])
    np.testing.assert_array_equal(third, first)


def test_an_unknown_model_is_refused_and_those_there_are_are_named(ask):
    with pytest.raises(PartyRefusedError, match=r"'m9'.*m1"):
        ask(StubParty(), posteriors([1], model="m9"))


def test_an_unknown_codec_is_refused_and_those_allowed_are_named(ask):
    with pytest.raises(PartyRefusedError, match=r"'zip'.*float32"):
        ask(StubParty(), embeddings([1], codec="zip"))


def test_no_ids_no_rows(ask):
    assert ask(StubParty(), posteriors([])).values.shape == (0, len(CLASSES))
    assert ask(StubParty(), embeddings([])).values.shape == (0, DIMENSION)


@pytest.mark.parametrize("bad", [1.5, None, True, b"\xff", "\ud800"])
def test_an_id_that_is_neither_text_nor_whole_number_is_refused(ask, bad):
    async def then_a_good_one(connection):
        with pytest.raises(PartyRefusedError):
            await posteriors([1, bad])(connection)
        return await posteriors([1])(connection)

    if bad == "\ud800":  # text in process, not text on a wire: either way nothing breaks
        with suppress(PartyRefusedError):
            assert np.isnan(ask(StubParty(), posteriors([bad])).values).all()
        return
    assert ask(StubParty(), then_a_good_one).values.shape == (1, len(CLASSES))


BROKEN = {
    "wrong width": lambda p: p[:, :2],
    "wrong length": lambda p: p[:1],
    "one axis": lambda p: p[:, 0],
    "a NaN": lambda p: np.where(np.arange(3) == 1, np.nan, p),
    "infinity": lambda p: np.where(np.arange(3) == 1, np.inf, p),
    "negative": lambda p: p - 0.5,
    "sums to two": lambda p: p * 2,
    "text": lambda _: [["a", "b", "c"], ["d", "e", "f"]],
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("how", BROKEN)
def test_nonsense_is_refused_and_the_connection_stands(ask, how):
    party = StubParty()
    sound = party.posteriors
    party.posteriors = lambda ids: BROKEN[how](sound(ids))

    async def then_embeddings(connection):
        with pytest.raises(PartyRefusedError):
            await posteriors([1, 2])(connection)
        return await embeddings([1])(connection)

    np.testing.assert_array_equal(ask(party, then_embeddings).values, party.e[[1]])


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RuntimeError("boom"), PartyRefusedError), (ConnectionError("database away"), PartyUnavailableError)],
)
def test_a_model_that_fails_is_an_error_of_that_call_alone(ask, error, kind):
    party = StubParty()

    def fail(ids):
        raise error

    party.embeddings = fail

    async def then_posteriors(connection):
        with pytest.raises(kind):
            await embeddings([1])(connection)
        return await posteriors([1])(connection)

    np.testing.assert_array_equal(ask(party, then_posteriors).values, party.p[[1]])


def test_many_calls_at_once_each_get_their_own_answer(ask):
    party = StubParty(200)

    async def many(connection):
        calls = [posteriors([i, (7 * i) % 200])(connection) for i in range(100)]
        return await asyncio.gather(*calls)

    for i, reply in enumerate(ask(party, many)):
        np.testing.assert_array_equal(reply.values, party.p[[i, (7 * i) % 200]])


def test_a_caller_that_stops_waiting_affects_no_other(ask):
    party = GatedParty()

    async def impatient(connection):
        other = asyncio.ensure_future(posteriors([2])(connection))
        abandoned = asyncio.ensure_future(posteriors([1])(connection))
        await until(party.entered.is_set)
        abandoned.cancel()
        await asyncio.wait({abandoned})
        party.gate.set()
        return await other, await posteriors([3])(connection)

    first, second = ask(party, impatient)
    np.testing.assert_array_equal(first.values, party.p[[2]])
    np.testing.assert_array_equal(second.values, party.p[[3]])


def test_impatient_callers_among_patient_ones_cost_no_answer(ask):
    party = StubParty(200)
    ids = list(range(200))

    async def mixed(connection):
        async def work(patience):
            for i in range(20):
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(embeddings(ids)(connection), patience * i)
                np.testing.assert_array_equal((await posteriors([i])(connection)).values, party.p[[i]])

        await asyncio.gather(*(work(patience) for patience in (0.0001, 0.0002, 0.0004, 0.0008) * 3))

    ask(party, mixed)


def test_a_batch_longer_than_a_message_arrives_whole(ask):
    party = StubParty(5000)
    ids = list(range(5000))
    how = {"max_message_bytes": 1 << 16, "max_samples": 700}
    reply = ask(party, embeddings(ids), **how)
    np.testing.assert_array_equal(reply.values, party.e)
    assert reply.payload_bytes == party.e.nbytes
    np.testing.assert_array_equal(ask(party, posteriors(ids), **how).values, party.p)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_round_prediction_is_the_same_as_in_the_library(transport, federation):
    drawn = world(n=300, m=3, k=len(CLASSES), seed=4)
    parties = []
    for i in range(3):
        party = StubParty(300, seed=i)
        party.p = drawn.local[i].astype(np.float32)
        parties.append(party)

    def fuse(arrays):
        logits = sum(np.asarray(a, np.float64)[:, : len(CLASSES)] for a in arrays)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    calibration, test = list(range(150)), list(range(150, 300))
    router = gr.ExpectedGainRouter(budget=0.3).fit(
        [p.p[calibration] for p in parties], drawn.labels[calibration], drawn.strong[calibration]
    )
    expected = gr.predict_two_round(parties, fuse, router, test)
    assert 0 < expected.escalated.sum() < len(test)

    async def main():
        async with (
            link(transport, federation, parties[0], name="p0") as first,
            link(transport, federation, parties[1], name="p1") as second,
            link(transport, federation, parties[2], name="p2") as third,
        ):
            remote = [ConnectedParty(connection, MODEL) for connection in (first, second, third)]
            return await gr.predict_two_round_async(remote, fuse, router, test)

    found = asyncio.run(asyncio.wait_for(main(), 30))
    np.testing.assert_array_equal(found.prediction, expected.prediction)
    np.testing.assert_array_equal(found.escalated, expected.escalated)
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    np.testing.assert_array_equal(found.score, expected.score)
    np.testing.assert_array_equal(found.bytes, expected.bytes)
