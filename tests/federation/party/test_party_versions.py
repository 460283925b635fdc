"""Versions come while requests are answered: no answer fails, none is mixed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
from party_helpers import Federation, StubParty, connected
from waiting import until

from gainroute.federation.party.process import PartyNode
from gainroute.federation.party.settings import SourceSettings
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.io.party_answers import write_columns

NAMES = ["cat", "dog", "fox"]


def test_versions_come_and_go_under_load(tmp_path):
    federation = Federation(tmp_path)
    models = tmp_path / "models"
    models.mkdir()
    parties = {f"m{i}": StubParty(40, seed=i) for i in range(6)}

    def add(model):
        party = parties[model]
        write_columns(models / f"{model}.npz", party.ids, party.p, party.e, NAMES, model)

    async def main():
        add("m0")
        settings = replace(federation.settings(), source=SourceSettings(columns=models))
        node = PartyNode(settings)
        await node.start()
        async with connected(federation, node) as connection:
            known, stop, answered = ["m0"], asyncio.Event(), [0, 0, 0]

            async def everyone_answered():
                """Wait until every request that is in flight now has been answered."""
                before = list(answered)
                await until(lambda: all(now > then for now, then in zip(answered, before, strict=True)))

            async def load(seed):
                rng = np.random.default_rng(seed)
                while not stop.is_set():
                    model = str(rng.choice(known))
                    ids = rng.integers(40, size=3)
                    first = connection.posteriors(ids, model=model, request_id="r")
                    second = connection.embeddings(ids, model=model, codec="float32", request_id="r")
                    posterior, embedding = await asyncio.gather(first, second)
                    np.testing.assert_array_equal(posterior.values, parties[model].p[ids])
                    np.testing.assert_array_equal(embedding.values, parties[model].e[ids])
                    answered[seed] += 1

            loads = [asyncio.ensure_future(load(seed)) for seed in range(3)]
            for i in range(1, 6):
                add(f"m{i}")
                (models / "half.npz").write_bytes(b"half copied")
                await node.rescan()
                known.append(f"m{i}")
                await everyone_answered()
            (models / "m0.npz").unlink()
            known.remove("m0")
            await everyone_answered()
            await node.rescan()
            await everyone_answered()
            stop.set()
            await asyncio.gather(*loads)
            assert {m.hash for m in (await connection.describe()).models} == set(parties) - {"m0"}
            for model in parties:
                (models / f"{model}.npz").unlink(missing_ok=True)
            await node.rescan()  # everything gone by mistake: what is loaded goes on
            assert (await connection.posteriors([1], model="m5", request_id="r")).values.shape == (1, 3)
        await node.stop(1)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_long_name_does_not_flood_the_logs(tmp_path):
    federation = Federation(tmp_path)
    party = StubParty()
    write_columns(tmp_path / "a.npz", party.ids, party.p, party.e, NAMES, "m")
    settings = replace(federation.settings(), source=SourceSettings(columns=tmp_path / "a.npz"))

    async def main():
        node = PartyNode(settings)
        await node.start()
        async with connected(federation, node) as connection:
            await connection.describe()
            ask = pb.Request(round=7, model="m" * 10**6, request_id="r" * 10**6, codec="c" * 10**6, ids=["1"])
            response = await connection._session.request(ask)
            assert response.failure.code == pb.Failure.CODE_INVALID
            ask.round = 1
            assert (await connection._session.request(ask)).failure.code == pb.Failure.CODE_UNKNOWN_MODEL
            for wrong in ({"ids": []}, {"round": 2, "codec": "zip"}, {"ids": ["1"] * 70_000}):
                ask = pb.Request(**{"round": 1, "model": "m", "ids": ["1"], **wrong})
                assert (await connection._session.request(ask)).WhichOneof("result") == "failure"
        await node.stop(1)

    asyncio.run(asyncio.wait_for(main(), 30))
    lines = settings.audit.path.read_text().splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) < 1500
    assert [json.loads(line)["outcome"] for line in lines] == [
        "invalid", "unknown_model", "invalid", "invalid", "too_large",
    ]  # fmt: skip
