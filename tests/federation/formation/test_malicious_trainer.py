"""A party that returns anything while a federation forms: the coordinator uses it within bounds, or names the party."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from party_helpers import Federation, serving_faulty

from gainroute.federation.formation.remote import TrainingStream
from gainroute.federation.formation.tasks import ARRAYS, SHOWN, VALUES
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.base import PartyError, PartyRefusedError
from gainroute.federation.transport.bounds import MAX_VALUE
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc

KINDS = sorted({*VALUES, *ARRAYS, "open", "begin"})


class FaultyTrainer(party_pb2_grpc.TrainingServicer):
    replies: list[pb.TaskReply] = []  # noqa: RUF012 (set by the tests)

    async def Work(self, tasks, context):  # noqa: N802
        async for task in tasks:
            for reply in self.replies:
                sent = pb.TaskReply.FromString(reply.SerializeToString())
                sent.number = sent.number or task.number
                yield sent


class Trained:
    """A stream to a trainer that sends what it likes."""

    def __init__(self, folder):
        self.loop, self.trainer, self.progress = asyncio.new_event_loop(), FaultyTrainer(), []
        self.federation = Federation(folder)
        self.serving = serving_faulty(self.federation, self.trainer)
        self.address = self.loop.run_until_complete(self.serving.__aenter__())
        self.certificate = ReloadingCertificate(self.federation.files("coordinator", "main"))

    def call(self, kind, *replies):
        async def main():
            self.trainer.replies = list(replies)
            stream = TrainingStream("a", self.address, self.certificate, lambda _, state: self.progress.append(state))
            await stream.open()
            try:
                return await stream.call(kind)
            finally:
                await stream.close()

        self.progress.clear()
        return self.loop.run_until_complete(main())

    def close(self):
        self.loop.run_until_complete(self.serving.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    made = Trained(tmp_path_factory.mktemp("trained"))
    yield made
    made.close()


ODD = st.sampled_from([10**400, "\x1b", "x" * 999])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10), ODD)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
NAMES = sorted({name for wanted in VALUES.values() for name in wanted} | {"stage", "note", "done", "total"})
OBJECTS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=8).map(json.dumps) | st.text(max_size=20)
TENSORS = st.builds(
    pb.Tensor, shape=st.lists(st.sampled_from([0, 1, 2, 3, 2**40, 2**64 - 1]), max_size=4),
    encoding=st.sampled_from(["float32", "float16", "int8", "int64", "bytes", "pickle", ""]),
    data=st.one_of(st.binary(max_size=24), st.sampled_from([np.full(n, 3e38, "<f4").tobytes() for n in (1, 2, 6)])),
)  # fmt: skip
RESULTS = st.builds(pb.TaskResult, values=OBJECTS, tensors=st.lists(TENSORS, max_size=4))
REPLIES = st.one_of(
    st.builds(pb.TaskReply, done=RESULTS), st.builds(pb.TaskReply, failure=st.builds(pb.Failure, message=st.text())),
    st.just(pb.TaskReply()), st.builds(pb.TaskReply, number=st.integers(1, 9), done=RESULTS),
)  # fmt: skip


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(KINDS), progress=st.lists(OBJECTS, max_size=2), last=REPLIES)
def test_whatever_a_trainer_returns_is_within_bounds_or_refused_by_its_name(trained, kind, progress, last):
    values, arrays, refused = {}, [], None
    try:
        values, arrays = trained.call(kind, *(pb.TaskReply(progress=text) for text in progress), last)
    except PartyError as error:
        refused = error
    if refused is None:
        assert all(is_valid(values[name]) for name, is_valid in VALUES.get(kind, {}).items())
        assert len(arrays) in ARRAYS.get(kind, (0,))
        assert all(np.abs(array).max(initial=0) <= MAX_VALUE for array in arrays if array.dtype.kind == "f")
    else:
        assert refused.party == "a"
        assert len(str(refused)) < 1200
    for state in trained.progress:
        assert set(state) == {"done", "total", "stage", "note"}
        assert max(len(state["stage"]), len(state["note"])) < SHOWN + 30


@pytest.mark.parametrize(
    ("kind", "values", "found"),
    [
        ("align", {"ids": -1}, "ids is -1"),
        ("align", {}, "ids is None"),
        ("local", {"seconds": 1e300}, r"seconds is 1e\+300"),
        ("split", {"class_names": ["a"], "integer_labels": False}, "class_names is"),
        ("deploy", {"model": "m\n"}, "model is"),
    ],
)
def test_a_value_out_of_bounds_is_named(trained, kind, values, found):
    tensors = [pb.Tensor(shape=[1], encoding="int64", data=bytes(8))] * ARRAYS.get(kind, (0,))[0]
    reply = pb.TaskReply(done=pb.TaskResult(values=json.dumps(values), tensors=tensors))
    with pytest.raises(PartyRefusedError, match=f"its answer to '{kind}' is not valid: {found}"):
        trained.call(kind, reply)
