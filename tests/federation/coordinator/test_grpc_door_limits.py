"""What calls over gRPC may cost: quotas, messages, calls, connections; and refusals that come from behind the door."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from fake_federation import federation, hold, running
from grpc_front_door import GrpcClient, Refused, another_connection, grpc_door, infer_request, packed
from waiting import until

from gainroute.errors import DataError
from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as pb
from gainroute.federation.coordinator.tokens import hash_token

Code = grpc.StatusCode
S0_S1 = packed(b"s0", b"s1")


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path).having(rounds={"one_seconds": 30.0})  # calls that are held stay in flight


def test_quotas_are_those_of_http_and_shared_with_it(fed):
    fed = fed.having(tokens={"client": {"shop": hash_token("c")}}, quota={"samples_per_minute": 3})

    async def work():
        async with running(fed) as up, grpc_door(up.coordinator, bearer="c") as client:
            up.client.headers["Authorization"] = "Bearer c"
            first = await up.infer(["s0", "s1"])
            return first.status_code, await client.infer(raw=S0_S1), await up.infer(["s0", "s1"])

    status, told, again = asyncio.run(work())
    assert status == 200
    assert told.code is Code.RESOURCE_EXHAUSTED
    assert told.text.startswith("the quota of shop, 3 samples per minute, is used up")
    assert (told.trailing["error-code"], again.status_code) == ("too_many_requests", 429)


def test_a_full_queue_a_missing_party_and_an_error_are_told_as_over_http(fed):
    async def work():
        async with running(fed) as up, grpc_door(up.coordinator) as client:
            up.coordinator.batcher.draining = True
            draining = await client.infer(raw=S0_S1)
            ready = pb.ReadyReply.FromString(await client.call("ServerReady")).ready
            up.coordinator.batcher.draining = False
            fed.parties[1].error = (DataError("its disk is full"), None)
            missing = await client.infer(raw=S0_S1)
            over_http = await up.infer(["s0", "s1"])
            fed.parties[1].error = (None, None)

            async def fail(*_):
                raise KeyError("secret")

            up.coordinator.infer = fail
            return draining, ready, missing, over_http, await client.infer(raw=S0_S1)

    draining, ready, missing, over_http, failed = asyncio.run(work())
    assert (draining.code, draining.trailing["error-code"]) == (Code.UNAVAILABLE, "draining")
    assert not ready
    assert (missing.code, missing.text) == (Code.UNAVAILABLE, over_http.json()["error"])
    assert missing.trailing["error-code"] == over_http.json()["code"]
    assert failed.code is Code.INTERNAL
    assert "secret" not in failed.text


def test_a_message_that_is_too_large_or_compressed_is_refused_by_grpc(fed):
    async def work():
        fed_small = fed.having(server={"max_body_bytes": 4096})
        async with running(fed_small) as up, grpc_door(up.coordinator) as client:
            large = await client.call("ModelInfer", b"\0" * 5000)
            squeezed = [
                await client.call("ModelInfer", infer_request(raw=S0_S1), compression=how)
                for how in (grpc.Compression.Gzip, grpc.Compression.Deflate)
            ]
            bomb = await client.call("ModelInfer", b"\0" * 30_000_000, compression=grpc.Compression.Gzip)
            return large, squeezed, bomb, await client.infer(raw=S0_S1)

    large, squeezed, bomb, after = asyncio.run(work())
    assert large.code is Code.RESOURCE_EXHAUSTED
    assert "5000 vs. 4096" in large.text
    assert [told.code for told in squeezed] == [Code.UNIMPLEMENTED] * 2
    assert "'gzip' is disabled" in squeezed[0].text
    assert bomb.code is Code.UNIMPLEMENTED
    assert not isinstance(after, Refused)


def test_a_call_without_a_message_ends_in_time_and_public_calls_need_none(fed):
    async def work():
        async with running(fed.having(server={"body_seconds": 0.2})) as up, grpc_door(up.coordinator) as client:

            def silent(method):
                return client.channel.stream_unary(f"/inference.GRPCInferenceService/{method}")(timeout=20)

            with pytest.raises(grpc.aio.AioRpcError) as told:
                await silent("ModelInfer")
            return told.value, pb.LiveReply.FromString(await silent("ServerLive")).live

    told, live = asyncio.run(work())
    assert (told.code(), told.details()) == (Code.DEADLINE_EXCEEDED, "the message did not arrive within 0.2 s")
    assert live


def test_a_call_that_ends_before_its_message_is_counted_and_is_no_error(fed, caplog):
    path = "/inference.GRPCInferenceService/ModelInfer"

    async def work():
        async with running(fed) as up, grpc_door(up.coordinator) as client:

            async def counted(expected):
                text = (await up.client.get("/metrics")).text
                return f'gainroute_requests_total{{status="400"}} {expected:.1f}' in text

            cancelled = client.channel.stream_unary(path)(timeout=20)
            assert isinstance(await client.call("ServerLive"), bytes)  # the call before has arrived, too
            cancelled.cancel()
            await until(lambda: counted(1))
            empty = client.channel.stream_unary(path)(timeout=20)
            await empty.done_writing()
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await empty
            await until(lambda: counted(2))
            stopped = client.channel.stream_unary(path)(timeout=20)
            assert isinstance(await client.call("ServerLive"), bytes)
            await client.door.stop(None)
            await until(lambda: counted(3))
            return told.value, await _outcome(stopped)

    told, stopped = asyncio.run(work())
    assert told.code() is Code.INVALID_ARGUMENT
    assert "the call ended before its message, of at most 4194304 bytes, had arrived" in told.details()
    assert stopped.code() is Code.UNAVAILABLE
    assert "a call failed" not in caplog.text


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_connections": 2}, (Code.UNAVAILABLE, "2 calls are open; no more are allowed: try again in a moment")),
        (
            {"max_connections_per_address": 2},
            (Code.RESOURCE_EXHAUSTED, "2 calls are open from 127.0.0.1; no more are allowed: wait for answers"),
        ),
    ],
)
def test_calls_in_progress_are_limited_in_all_and_by_address(fed, limits, told):
    async def work():
        gate = hold(fed)
        async with running(fed.having(server=limits)) as up, grpc_door(up.coordinator) as client:
            first = [asyncio.ensure_future(client.infer(raw=S0_S1)) for _ in range(2)]
            await until(lambda: up.coordinator.batcher.in_flight == 4)
            async with another_connection(client.door) as channel:
                other = GrpcClient(channel, client.door)
                third, health = await other.infer(raw=S0_S1), await other.call("ServerLive")
            gate.set()
            return third, health, [*await asyncio.gather(*first), await client.infer(raw=S0_S1)]

    third, health, answered = asyncio.run(work())
    assert (third.code, third.text) == told
    assert isinstance(health, bytes)
    assert not [reply for reply in answered if isinstance(reply, Refused)]


def test_connections_are_limited_and_idle_and_silent_ones_are_closed(fed):
    limits = {"max_connections": 1, "idle_seconds": 0.2, "header_seconds": 2.0}

    async def work():
        gate = hold(fed)
        async with running(fed.having(server=limits)) as up, grpc_door(up.coordinator) as client:
            held = asyncio.ensure_future(client.infer(raw=S0_S1))
            await until(lambda: up.coordinator.batcher.in_flight == 2)
            async with another_connection(client.door) as channel:
                refused = await GrpcClient(channel, client.door).call("ServerLive")
            gate.set()
            await held

            async def admitted():  # once the first connection was idle for long enough
                async with another_connection(client.door) as channel:
                    return isinstance(await GrpcClient(channel, client.door).call("ServerLive"), bytes)

            await until(admitted, 20)
            reader, writer = await asyncio.open_connection("127.0.0.1", client.door.port)
            await asyncio.wait_for(reader.read(), 20)  # ends, although nothing was sent
            writer.close()
            return refused

    assert asyncio.run(work()).code is Code.UNAVAILABLE


def test_clients_that_cancel_have_no_more_samples_in_flight_than_others(fed):
    """Calls that were cancelled count until they are answered: sending and cancelling does not fill the queue."""
    fed = fed.having(batching={"max_queued": 4, "max_batch": 4})

    async def work():
        gate = hold(fed)
        async with running(fed) as up, grpc_door(up.coordinator) as client:
            path = "/inference.GRPCInferenceService/ModelInfer"
            for expected in (2, 4):
                call = client.channel.unary_unary(path)(infer_request(raw=S0_S1).SerializeToString())
                sent = asyncio.ensure_future(_outcome(call))
                await until(lambda expected=expected: up.coordinator.batcher.in_flight == expected)
                call.cancel()
                await sent
            refused = await client.infer(raw=S0_S1)
            held = up.coordinator.batcher.in_flight
            gate.set()
            await until(lambda: up.coordinator.batcher.in_flight == 0)
            return held, refused, await client.infer(raw=S0_S1)

    held, refused, after = asyncio.run(work())
    assert held == 4
    assert (refused.code, refused.trailing["error-code"]) == (Code.UNAVAILABLE, "busy")
    assert not isinstance(after, Refused)


async def _outcome(call):
    try:
        return await call
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        return error


def test_metadata_has_a_limit(fed):
    async def work():
        async with running(fed.having(server={"max_header_bytes": 2048})) as up, grpc_door(up.coordinator) as client:
            told = await client.infer(raw=S0_S1, metadata=[("x-long", "a" * 5000)])
            return told, await client.infer(raw=S0_S1)

    told, after = asyncio.run(work())
    assert told.code is Code.RESOURCE_EXHAUSTED
    assert not isinstance(after, Refused)


SETTINGS, HEADERS, DATA, RESET = 4, 1, 0, 3  # frames of HTTP/2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def call_headers(stream: int) -> bytes:
    """The frame that begins a call of ModelInfer."""
    fields = {
        ":method": "POST", ":scheme": "http", ":authority": "127.0.0.1",
        ":path": "/inference.GRPCInferenceService/ModelInfer", "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    block = b"".join(b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in pair) for pair in fields.items())
    return frame(HEADERS, 4, stream, block)


def greeting(settings: bytes = b"") -> bytes:
    """How a connection of HTTP/2 begins."""
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings)


def answered(client: GrpcClient):
    """Whether another call is answered."""

    async def ask():
        return not isinstance(await client.infer(raw=S0_S1), Refused)

    return ask


def test_streams_of_one_connection_are_limited(fed):
    """A client that ignores what the server allows: further streams are refused, and others are served."""
    streams, allowed = 100, 4

    async def work():
        limits = {"max_connections_per_address": allowed}
        async with running(fed.having(server=limits)) as up, grpc_door(up.coordinator) as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.door.port)
            writer.write(greeting() + b"".join(call_headers(2 * i + 1) for i in range(streams)))
            codes = []
            while len(codes) < streams - allowed:
                head = await asyncio.wait_for(reader.readexactly(9), 20)
                payload = await asyncio.wait_for(reader.readexactly(int.from_bytes(head[:3], "big")), 20)
                if head[3] == RESET:
                    codes.append(int.from_bytes(payload, "big"))
            health = await client.call("ServerLive")
            told = await client.infer(raw=S0_S1)
            writer.close()
            await until(answered(client), 20)
            return codes, health, told

    codes, health, told = asyncio.run(work())
    assert set(codes) <= {7, 11}  # REFUSED_STREAM, ENHANCE_YOUR_CALM
    assert len(codes) == streams - allowed
    assert isinstance(health, bytes)
    assert told.text == "4 calls are open from 127.0.0.1; no more are allowed: wait for answers"


def test_an_answer_that_its_client_does_not_read_counts_as_a_call(fed):
    async def work():
        limits = {"max_connections_per_address": 1}
        async with running(fed.having(server=limits)) as up, grpc_door(up.coordinator) as client:
            _, writer = await asyncio.open_connection("127.0.0.1", client.door.port)
            message = infer_request(raw=S0_S1).SerializeToString()
            no_window = b"\x00\x04" + bytes(4)  # nothing may be sent to this client
            data = b"\x00" + len(message).to_bytes(4, "big") + message
            writer.write(greeting(no_window) + call_headers(1) + frame(DATA, 1, 1, data))
            live = up.coordinator.live
            await until(lambda: live.samples == 2 and up.coordinator.batcher.in_flight == 0)
            told = await client.infer(raw=S0_S1)
            writer.close()
            await until(answered(client), 20)
            return told

    told = asyncio.run(work())
    assert told.text == "1 calls are open from 127.0.0.1; no more are allowed: wait for answers"
