"""A connection that reconnects by itself, and a party that sends invalid answers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from party_helpers import (
    CLASSES,
    DIMENSION,
    MODEL,
    QUICK,
    FaultyParty,
    Federation,
    GatedParty,
    StubParty,
    connected,
    serving,
    serving_faulty,
)
from waiting import until

from gainroute.errors import SettingError
from gainroute.federation.pki.access import Caller
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.base import PartyError, PartyRefusedError, PartyUnavailableError
from gainroute.federation.transport.grpc_client import GrpcConnection
from gainroute.federation.transport.grpc_server import _Stream
from gainroute.federation.transport.grpc_session import GrpcSession
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.wire import chunks

ASK = {"model": MODEL, "request_id": "r"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    return Federation(tmp_path_factory.mktemp("federation"))


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


# ---- staying connected ------------------------------------------------------------------------------


def test_a_party_that_is_not_there_fails_fast_and_is_found_when_it_comes(federation):
    party = StubParty()

    async def main():
        async with serving(federation.settings(), party) as node:
            listen = node.address
        connection = GrpcConnection("a", listen, federation.files("coordinator", "main"), QUICK)
        for _ in range(3):
            with pytest.raises(PartyUnavailableError):
                await connection.posteriors([1], **ASK)
        assert connection.certificate_expires is None
        async with serving(federation.settings(listen=listen), party):
            await until(lambda: connection.connected)
            reply = await connection.posteriors([1], **ASK)
            np.testing.assert_array_equal(reply.values, party.p[[1]])
        await until(lambda: not connection.connected)
        async with serving(federation.settings(listen=listen), party):
            await until(lambda: connection.connected)
            await connection.posteriors([1], **ASK)
        await connection.close()
        with pytest.raises(PartyUnavailableError, match="closed"):
            await connection.posteriors([1], **ASK)

    run(main())


def test_requests_in_flight_fail_when_a_party_dies(federation):
    party = GatedParty()

    async def main():
        async with serving(federation.settings(), party) as node, connected(federation, node) as connection:
            waiting = [asyncio.ensure_future(connection.posteriors([i], **ASK)) for i in range(3)]
            await until(party.entered.is_set)
            await node._server._server.stop(0)  # as if the process had ended
            results = await asyncio.gather(*waiting, return_exceptions=True)
            party.gate.set()
            assert all(isinstance(result, PartyUnavailableError) for result in results)

    run(main())


def test_draining_finishes_requests_in_flight_and_refuses_new_ones(federation):
    party = GatedParty()

    async def main():
        async with serving(federation.settings(), party) as node, connected(federation, node) as connection:
            inside = asyncio.ensure_future(connection.posteriors([1], **ASK))
            await until(party.entered.is_set)
            stopping = asyncio.ensure_future(node.stop(30))
            await until(node._server._servicer.draining.is_set)
            with pytest.raises(PartyUnavailableError):
                await connection.posteriors([2], **ASK)
            party.gate.set()
            np.testing.assert_array_equal((await inside).values, party.p[[1]])
            await stopping

    run(main())


def test_a_connection_is_refreshed_by_age_without_a_failed_answer(federation):
    options = replace(QUICK, refresh_seconds=0.1)

    async def main():
        async with (
            serving(federation.settings(), StubParty()) as node,
            connected(federation, node, options=options) as connection,
        ):
            sessions = set()

            async def replaced_twice():
                await connection.posteriors([1], **ASK)
                sessions.add(connection._session)
                return len(sessions) > 2

            await until(replaced_twice)

    run(main())


def test_a_withdrawn_request_is_not_computed_when_its_turn_comes(federation):
    party = GatedParty()

    async def main():
        async with serving(federation.settings(), party) as node, connected(federation, node) as connection:
            first = asyncio.ensure_future(connection.posteriors([1], **ASK))
            await until(party.entered.is_set)
            second = asyncio.ensure_future(connection.posteriors([2], **ASK))
            # A stream is read in order: once this one is refused, the party has seen everything sent before it.
            await connection._session.request(pb.Request(round=7))
            second.cancel()
            await asyncio.wait({second})
            await connection._session.request(pb.Request(round=7))
            party.gate.set()
            await first
            await connection.posteriors([3], **ASK)

    run(main())
    assert party.calls == 2


class _Gated:
    """Context and handler of a stream: a response is on its way until the gate opens."""

    def __init__(self, *, immediate):
        self.sent, self.busy, self.gate, self.immediate = [], False, asyncio.Event(), immediate
        self.stream = _Stream(self, self, 8)

    def is_immediate(self, request):
        return self.immediate

    async def answer(self, caller, request):
        return pb.Response(correlation=request.correlation)

    async def accept(self, number):
        await self.stream.accept(Caller("main", "ff"), pb.Request(correlation=number))

    async def write(self, response):
        assert not self.busy, "two messages at a time"
        self.busy = True
        await self.gate.wait()
        self.busy = False
        self.sent.append(response.correlation)

    def cancelled(self):
        return False


def test_a_request_withdrawn_while_its_answer_is_being_sent_delays_no_other():
    """gRPC sends one message at a time, and goes on sending when the sender is cancelled."""

    async def main():
        gated = _Gated(immediate=False)
        for number in (1, 2):
            await gated.accept(number)
        await until(lambda: gated.busy)
        gated.stream.withdraw(1)
        for _ in range(10):  # turns of the loop in which a cancellation would take effect
            await asyncio.sleep(0)
        gated.gate.set()
        await gated.stream.finish()
        return gated.sent

    assert run(main()) == [1, 2]


def test_a_party_that_stops_waits_for_an_immediate_answer_on_its_way():
    async def main():
        gated = _Gated(immediate=True)
        reading = asyncio.ensure_future(gated.accept(1))
        await until(lambda: gated.busy)
        finishing = asyncio.ensure_future(gated.stream.finish())
        for _ in range(10):  # turns of the loop in which it could finish
            await asyncio.sleep(0)
        assert not finishing.done()
        gated.gate.set()
        await finishing
        reading.cancel()
        return gated.sent

    assert run(main()) == [1]


def test_a_port_in_use_is_an_error_at_start(federation):
    async def main():
        async with serving(federation.settings(), StubParty()) as node:
            with pytest.raises(SettingError, match="in use"):
                async with serving(federation.settings(listen=node.address), StubParty()):
                    pass

    run(main())


# ---- limits -----------------------------------------------------------------------------------------


def test_ids_are_cut_so_that_every_message_fits():
    ids = [f"{i:06d}" for i in range(1000)]
    parts = chunks(ids, 512, max_samples=0, message_bytes=1 << 16)
    assert [i for part in parts for i in ids[part]] == ids
    assert max(part.stop - part.start for part in parts) * 512 * 4 < 1 << 16
    assert len(chunks(ids, 3, max_samples=100, message_bytes=1 << 24)) == 10


def test_an_answer_or_an_id_longer_than_a_message_is_refused_before_it_is_sent(federation):
    options = replace(QUICK, max_message_bytes=1 << 13)

    async def main():
        async with (
            serving(federation.settings(), StubParty()) as node,
            connected(federation, node, options=options) as connection,
        ):
            with pytest.raises(PartyRefusedError, match="max_message_bytes"):
                await connection.posteriors(["x" * 10_000], **ASK)
            await connection.posteriors([1], **ASK)

    run(main())


def test_a_message_longer_than_the_party_reads_ends_the_stream_and_nothing_else(federation):
    settings = federation.settings(max_message_bytes=1 << 16)

    async def main():
        async with serving(settings, StubParty()) as node, connected(federation, node) as connection:
            await connection.describe()
            session = connection._session
            with pytest.raises(PartyRefusedError, match="too long"):
                await session.request(pb.Request(round=1, model=MODEL, ids=["1" * 100] * 5000))
            await until(lambda: connection.connected)
            await connection.posteriors([1], **ASK)

    run(main())


def test_a_million_ids_at_once(federation):
    ids = [str(i) for i in range(1_000_000)]

    async def main():
        async with serving(federation.settings(), StubParty()) as node, connected(federation, node) as connection:
            return await connection.posteriors(ids, **ASK)

    reply = run(main())
    assert reply.values.shape == (1_000_000, len(CLASSES))
    assert np.isfinite(reply.values[:50]).all()
    assert np.isnan(reply.values[50:]).all()


def test_a_description_that_is_awaited_when_the_session_closes_is_our_error(federation):
    """gRPC cancels the call; the caller was not cancelled, and must not think so: health checks would end."""

    class Frozen(FaultyParty):
        described = 0

        async def Describe(self, request, context):  # noqa: N802
            self.described += 1
            if self.described > 1:
                await asyncio.Event().wait()
            return self.describe

    told = pb.DescribeReply(name="a", classes=CLASSES, codecs=["float32"], models=[pb.Model(hash=MODEL, dimension=2)])

    async def main():
        party = Frozen(told, None)
        async with serving_faulty(federation, party) as address:
            credentials = ReloadingCertificate(federation.files("coordinator", "main")).channel()
            session = GrpcSession("a", address, credentials, replace(QUICK, connect_timeout=20.0))
            await session.open()
            describing = asyncio.ensure_future(session.describe())
            await until(lambda: party.described == 2)
            await session.close()
            with pytest.raises(PartyUnavailableError, match="closed"):
                await describing

    run(main())


# ---- a party that answers wrongly -------------------------------------------------------------------


@asynccontextmanager
async def connected_to_faulty(federation, answer, describe=None):
    told = {
        "name": "a", "classes": CLASSES, "codecs": ["float32", "int8"],
        "models": [pb.Model(hash=MODEL, dimension=DIMENSION)],
    }  # fmt: skip
    faulty = FaultyParty(pb.DescribeReply(**{**told, **(describe or {})}), answer)
    async with serving_faulty(federation, faulty) as address:
        options = replace(QUICK, max_message_bytes=1 << 20)
        connection = GrpcConnection("a", address, federation.files("coordinator", "main"), options)
        try:
            yield connection
        finally:
            await connection.close()


GOOD = np.full((2, 3), 1 / 3, "<f4")


def response(values=GOOD, *, shape=None, model=MODEL, encoding="float32", missing=(), data=None):
    tensor = pb.Tensor(shape=shape or values.shape, encoding=encoding, data=values.tobytes() if data is None else data)
    return pb.Response(answer=pb.Answer(model=model, missing=missing, values=tensor))


INVALID = {
    "another model": response(model="m2"),
    "too few rows": response(GOOD[:1]),
    "too many columns": response(np.full((2, 4), 0.25, "<f4")),
    "transposed": response(shape=(3, 2)),
    "shape and bytes disagree": response(data=b"1234"),
    "no bytes": response(data=b""),
    "another encoding": response(encoding="float16", data=GOOD.astype("<f2").tobytes()),
    "an unknown encoding": response(encoding="pickle"),
    "float64": response(GOOD.astype("<f8")),
    "NaN": response(np.array([[np.nan, 0.5, 0.5], [0.2, 0.3, 0.5]], "<f4")),
    "a whole row of NaN": response(np.array([[np.nan] * 3, [0.2, 0.3, 0.5]], "<f4")),
    "infinity": response(np.array([[np.inf, 0.5, 0.5], [0.2, 0.3, 0.5]], "<f4")),
    "negative": response(np.array([[-0.5, 1, 0.5], [0.2, 0.3, 0.5]], "<f4")),
    "sums to three": response(np.ones((2, 3), "<f4")),
    "missing out of range": response(GOOD[:1], missing=[7]),
    "missing twice": response(GOOD[:0], missing=[1, 1]),
    "missing out of order": response(GOOD[:0], shape=(0, 3), missing=[1, 0]),
    "missing and yet there": response(GOOD, missing=[0]),
    "nothing at all": pb.Response(),
    "an endless message": response(np.full((400_000, 3), 1 / 3, "<f4")),
}


@pytest.mark.parametrize("how", INVALID)
def test_an_invalid_answer_is_refused(federation, how):
    async def main():
        async with connected_to_faulty(federation, lambda _: INVALID[how]) as connection:
            with pytest.raises(PartyRefusedError):
                await connection.posteriors(["1", "2"], **ASK)

    run(main())


def test_an_answer_to_an_unknown_request_is_ignored(federation):
    asked = []

    def answer(request):
        asked.append(request)
        made = response()
        if len(asked) == 1:
            made.correlation = 999
        return made

    async def main():
        async with connected_to_faulty(federation, answer) as connection:
            first = asyncio.ensure_future(connection.posteriors(["1", "2"], **ASK))
            await until(lambda: asked)
            assert (await connection.posteriors(["1", "2"], **ASK)).values.shape == (2, 3)
            assert not first.done()
            first.cancel()

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "b"},
        {"classes": ["one"]},
        {"classes": ["x", "x"]},
        {"models": [pb.Model(hash="", dimension=4)]},
        {"models": [pb.Model(hash="h")]},
        {"models": [pb.Model(hash="h", dimension=2**32 - 1)]},
        {"models": [pb.Model(hash="h" * 300, dimension=4)]},
        {"models": [pb.Model(hash=str(i), dimension=4) for i in range(1001)]},
        {"classes": ["x", "y" * 300]},
        {"classes": ["x", "y\x1b[2J"]},
        {"codecs": ["z" * 300]},
        {"certificate_not_after": 2**62},
        {"certificate_not_after": -1},
    ],
    ids=str,
)
def test_an_invalid_description_is_refused(federation, wrong):
    async def main():
        async with connected_to_faulty(federation, lambda _: response(), wrong) as connection:
            with pytest.raises(PartyRefusedError):
                await connection.describe()

    run(main())


def test_the_reason_of_a_failure_is_cut_and_printable(federation):
    failure = pb.Failure(code=pb.Failure.CODE_INTERNAL, message="\x1b[2J\r\n" + "x" * 500_000)

    async def main():
        async with connected_to_faulty(federation, lambda _: pb.Response(failure=failure)) as connection:
            with pytest.raises(PartyRefusedError) as refused:
                await connection.posteriors(["1", "2"], **ASK)
        return str(refused.value)

    reason = run(main())
    assert len(reason) < 1100
    assert reason.isprintable()
    assert reason.endswith("(500006 characters)")


@pytest.mark.parametrize("value", [3e38, -2e12, np.nan, np.inf])
def test_an_absurd_number_in_an_embedding_is_refused(federation, value):
    values = np.zeros((1, DIMENSION), "<f4")
    values[0, 3] = value

    async def main():
        async with connected_to_faulty(federation, lambda _: response(values)) as connection:
            with pytest.raises(PartyRefusedError, match=r"NaN, or a value beyond ±1e\+12"):
                await connection.embeddings(["1"], codec="float32", **ASK)

    run(main())


def test_nothing_but_a_party_error_comes_out(federation):
    async def main():
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = GrpcConnection("a", f"127.0.0.1:{port}", federation.files("coordinator", "main"), QUICK)
        with pytest.raises(PartyError):
            await connection.describe()
        await connection.close()
        server.close()

    run(main())
