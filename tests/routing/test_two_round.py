"""Algorithm 1 over parties in process, synchronous and asynchronous, and the cascade of two models."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from synthetic import world

import gainroute as gr
from gainroute.errors import PosteriorError, ShapeError

K, M = 4, 3
CALIBRATION, TEST = world(400, M, K, 0), world(120, M, K, 1)
IDS = [f"s{i}" for i in range(120)]


class TableParty:
    """A party whose embeddings carry a share of the strong answer, so that fusion can be checked."""

    def __init__(self, index: int, lacks: tuple[int, ...] = ()) -> None:
        self.index, self.lacks, self.asked = index, lacks, []

    def posteriors(self, ids):
        rows = [IDS.index(i) for i in ids]
        p = TEST.local[self.index, rows].astype(np.float32)
        p[[r for r, i in enumerate(rows) if i in self.lacks]] = np.nan
        return p

    def embeddings(self, ids):
        rows = [IDS.index(i) for i in ids]
        self.asked.append(list(ids))
        return np.eye(K, dtype=np.float32)[TEST.strong[rows]] / M


class AsyncTableParty:
    def __init__(self, index: int, lacks: tuple[int, ...] = ()) -> None:
        self.inner = TableParty(index, lacks)

    async def posteriors(self, ids):
        await asyncio.sleep(0)
        return self.inner.posteriors(ids)

    async def embeddings(self, ids):
        await asyncio.sleep(0)
        return self.inner.embeddings(ids)


def fuse(embeddings):
    return np.sum(embeddings, axis=0)


ROUTER = gr.ExpectedGainRouter(0.3).fit(CALIBRATION.local, CALIBRATION.labels, CALIBRATION.strong)


def predict(kind, lacks=((), (), ()), ids=IDS, router=ROUTER, combine=fuse):
    if kind == "sync":
        return gr.predict_two_round([TableParty(i, lacks[i]) for i in range(M)], combine, router, ids)
    parties = [AsyncTableParty(i, lacks[i]) for i in range(M)]
    return asyncio.run(gr.predict_two_round_async(parties, combine, router, ids))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_integer_labels_come_back_as_integers(kind, tmp_path):
    router = gr.ExpectedGainRouter(0.3, classes=range(11, 11 + K))
    router.fit(CALIBRATION.local, CALIBRATION.labels + 11, CALIBRATION.strong + 11)
    gr.save(router, tmp_path / "router")
    for one in (router, gr.load(tmp_path / "router")):
        found, plain = predict(kind, router=one), predict(kind)
        assert found.prediction.dtype.kind == "i"
        np.testing.assert_array_equal(found.prediction, plain.prediction + 11)
        assert one.explain(TEST.local[:, 0]).classes.tolist() == [11, 12, 13, 14]
        lacking = predict(kind, lacks=((0,),) * M, router=one).prediction.tolist()
        assert [type(label) for label in lacking[:2]] == [type(None), int]
    weak, strong = (lambda rows: TEST.local[0][rows]), (lambda rows: TEST.strong[rows] + 11)
    one = gr.ExpectedGainRouter(0.3, classes=range(11, 11 + K))
    one.fit(CALIBRATION.local[0], CALIBRATION.labels + 11, CALIBRATION.strong + 11)
    assert gr.cascade(weak, strong, one)(np.arange(120)).prediction.dtype.kind == "i"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_two_rounds_give_what_the_router_says(kind):
    found = predict(kind)
    decision = ROUTER.route(TEST.local.astype(np.float32))
    np.testing.assert_array_equal(found.escalated, decision.escalate)
    np.testing.assert_array_equal(found.prediction, np.where(decision.escalate, TEST.strong, decision.weak_prediction))
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(found.score, decision.score)
    expected = gr.communication_cost(K, [K] * M, decision.escalate.mean()) * len(IDS)
    assert found.bytes.sum() == pytest.approx(expected)


def test_embeddings_are_asked_for_escalated_samples_only():
    parties = [TableParty(i) for i in range(M)]
    found = gr.predict_two_round(parties, fuse, ROUTER, IDS)
    wanted = [i for i, sent in zip(IDS, found.escalated, strict=True) if sent]
    assert all(p.asked == [wanted] for p in parties)
    never = gr.ExpectedGainRouter(0.0).fit(CALIBRATION.local, CALIBRATION.labels, CALIBRATION.strong)
    parties = [TableParty(i) for i in range(M)]
    found = gr.predict_two_round(parties, fuse, never, IDS)
    assert all(p.asked == [] for p in parties)
    assert not found.escalated.any()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_sample_that_a_party_lacks_concerns_that_sample_alone(kind):
    whole, holed = predict(kind), predict(kind, lacks=((5,), (5, 7), (5,)))
    others = np.setdiff1d(np.arange(120), [5, 7])
    np.testing.assert_array_equal(whole.prediction[others], holed.prediction[others])
    assert holed.prediction[5] == -1
    assert not holed.escalated[[5, 7]].any()
    assert holed.prediction[7] == TEST.local[[0, 2], 7].mean(axis=0).argmax()
    assert holed.bytes[5] == 0
    assert holed.bytes[7] == 2 * K * 4


def test_parties_that_answer_nonsense():
    class Half(TableParty):
        def posteriors(self, ids):
            p = super().posteriors(ids)
            p[0, 0] = np.nan
            return p

    class Short(TableParty):
        def posteriors(self, ids):
            return super().posteriors(ids)[:-1]

    class ShortEmbeddings(TableParty):
        def embeddings(self, ids):
            return super().embeddings(ids)[:-1]

    def run(bad):
        return gr.predict_two_round([TableParty(0), bad, TableParty(2)], fuse, ROUTER, IDS)

    with pytest.raises(PosteriorError, match="party 1, row 0 mixes NaN with numbers"):
        run(Half(1))
    with pytest.raises(ShapeError, match="all must answer the same samples"):
        run(Short(1))
    with pytest.raises(ShapeError, match="party 1 sent embeddings of shape"):
        run(ShortEmbeddings(1))


def test_the_protocols_know_a_party_when_they_see_one():
    assert isinstance(TableParty(0), gr.Party)
    assert not isinstance(object(), gr.Party)
    # Training is another protocol: nothing of it is visible at a serving party.
    assert {n for n in vars(gr.Party) if not n.startswith("_")} == {"posteriors", "embeddings"}


def two_models():
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    labels = rng.integers(3, size=900)
    x = centres[labels] + rng.normal(size=(900, 2)) * 0.6

    def weak(inputs):  # sees the first coordinate only
        d = -np.square(np.asarray(inputs)[:, :1] - centres[:, 0])
        p = np.exp(d) / np.exp(d).sum(axis=1, keepdims=True)
        return p.astype(np.float32)

    def strong(inputs):
        return np.square(np.asarray(inputs)[:, None] - centres).sum(axis=2).argmin(axis=1)

    return x, labels, weak, strong


@pytest.mark.parametrize("kind", [np.asarray, list])
def test_a_cascade_calls_the_big_model_on_escalated_inputs_only(kind):
    x, labels, weak, strong = two_models()
    seen = []

    def watched(inputs):
        seen.append(len(inputs))
        return strong(inputs)

    router = gr.ExpectedGainRouter(0.25).fit(weak(x[:500]), labels[:500], strong(x[:500]))
    found = gr.cascade(weak, watched, router)(kind(x[500:]))
    assert seen == [found.escalated.sum()]
    assert 0.1 < found.escalated.mean() < 0.4
    weak_accuracy = (weak(x[500:]).argmax(axis=1) == labels[500:]).mean()
    assert (found.prediction == labels[500:]).mean() > weak_accuracy + 0.05
    never = gr.ExpectedGainRouter(0.0).fit(weak(x[:500]), labels[:500], strong(x[:500]))
    gr.cascade(weak, watched, never)(kind(x[500:]))
    assert len(seen) == 1  # not called at all when nothing is escalated


def test_a_cascade_takes_data_frames_and_posteriors():
    x, labels, weak, strong = two_models()

    class Frame:  # what pandas and polars users pass: rows by position through .iloc
        def __init__(self, values):
            self.values = values
            self.iloc = self

        def __getitem__(self, rows):
            return Frame(self.values[rows])

        def __array__(self, dtype=None, copy=None):
            return self.values

    router = gr.ExpectedGainRouter(0.25).fit(weak(x[:500]), labels[:500], strong(x[:500]))
    one = gr.cascade(weak, strong, router)(x[500:])
    two = gr.cascade(weak, lambda f: np.eye(3)[strong(f)], router)(Frame(x[500:]))
    np.testing.assert_array_equal(one.prediction, two.prediction)
