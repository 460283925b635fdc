"""Columns in another order than the classes: matched by name where they have names, refused where the labels tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from synthetic import world

import gainroute as gr
from gainroute.errors import InputError, ShapeError
from gainroute.evaluation.compare import compare_routers
from gainroute.experiments.records import load_record
from gainroute.routing.class_order import likely_order

DATA = world(400, 2, 3, 0, strength=4)
NAMES = np.array(["bird", "cat", "dog"])
RECORDS = Path(__file__).parents[2] / "records"


class Frame:
    """What a pandas DataFrame and a polars one have in common."""

    def __init__(self, values, columns):
        self.values, self.columns = np.asarray(values), columns

    def to_numpy(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        return self.values


def fitted(local, **settings):
    return gr.ExpectedGainRouter(0.2, classes=NAMES).fit(local, NAMES[DATA.labels], NAMES[DATA.strong], **settings)


@pytest.mark.parametrize("table", [Frame, lambda v, c: pa.table(dict(zip(c, v.T, strict=True)))])
def test_the_columns_of_tables_are_matched_by_name(table):
    turned = [2, 0, 1]
    columns = NAMES[turned].tolist()
    local = [table(p[:, turned], columns) for p in DATA.local]
    plain, named = fitted(DATA.local), fitted(local)
    assert named.threshold_ == plain.threshold_
    a, b = plain.route(DATA.local), named.route(local)
    np.testing.assert_array_equal(a.pooled, b.pooled)
    strong = np.eye(3)[DATA.strong[a.escalate]]
    answers = named.answer(b, table(strong[:, turned], columns)).prediction
    np.testing.assert_array_equal(answers, plain.answer(a, strong).prediction)
    posterior = np.eye(3)[DATA.strong]
    blended = fitted(local, strong_posterior=table(posterior[:, turned], columns))
    assert blended.threshold_ == fitted(DATA.local, strong_posterior=posterior).threshold_


def test_parties_without_class_names_are_brought_into_the_order_of_the_first():
    local = [Frame(DATA.local[0], ["a", "b", "c"]), Frame(DATA.local[1][:, ::-1], ["c", "b", "a"])]
    router = gr.ConfidenceRouter(0.2).fit(local, DATA.labels, DATA.strong)
    np.testing.assert_array_equal(router.route(local).pooled, DATA.local.mean(axis=0))
    numbered = Frame(DATA.local[0][:, ::-1], [2, 1, 0])
    router = gr.ConfidenceRouter(0.2).fit(numbered, DATA.labels, DATA.strong)
    np.testing.assert_array_equal(router.route(numbered).pooled, DATA.local[0])


def test_columns_that_are_only_numbered_keep_their_order():
    assert fitted([Frame(p, [0, 1, 2]) for p in DATA.local]).threshold_ == fitted(DATA.local).threshold_


def test_columns_of_other_names_are_refused():
    with pytest.raises(ShapeError, match="has the columns bird, cat, fox, the classes are bird, cat, dog; name one"):
        fitted([Frame(p, ["bird", "cat", "fox"]) for p in DATA.local])


def test_swapped_classes_are_refused_and_the_likely_order_is_named():
    swapped = np.array(["cat", "bird", "dog"])
    router = gr.ExpectedGainRouter(0.2, classes=swapped)
    with pytest.raises(
        InputError,
        match=r"^local_posteriors: the columns seem .* column 0 looks like class 'bird', not 'cat'; column 1 looks "
        r"like class 'cat', not 'bird'\. On these classes \d+ % .*\(likely order: bird, cat, dog\)",
    ):
        router.fit(DATA.local, NAMES[DATA.labels], NAMES[DATA.strong])
    router.fit(DATA.local, NAMES[DATA.labels], NAMES[DATA.strong], check_class_order=False)
    assert router.threshold_ is not None


def test_one_swapped_party_is_named():
    local = DATA.local.copy()
    local[1] = local[1][:, [1, 2, 0]]
    with pytest.raises(
        InputError, match=r"local_posteriors of party 1: the columns seem .* column 0 looks like class 1, "
    ):
        gr.ConfidenceRouter().fit(local, DATA.labels, DATA.strong)


def test_swapped_strong_posteriors_are_named():
    with pytest.raises(InputError, match=r"^strong_posterior: the columns seem"):
        fitted(DATA.local, strong_posterior=np.eye(3)[DATA.strong][:, [1, 2, 0]])


def test_two_classes_far_below_chance_are_refused():
    data = world(300, 1, 2, 0, strength=3)
    with pytest.raises(InputError, match="column 0 looks like class 1, not 0; column 1 looks like class 0, not 1"):
        gr.ConfidenceRouter().fit(data.local[..., ::-1], data.labels, data.strong)
    with pytest.raises(InputError, match="the columns seem"):
        compare_routers(data.local[..., ::-1], data.labels, data.strong)
    gr.ConfidenceRouter().fit(data.local, data.labels, data.strong)


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*/seed[01].npz")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_trained_parties_are_never_refused_and_shuffled_ones_wherever_they_answer_several_classes(path):
    record = load_record(path)
    for part in [record.calibration, *record.regimes().values()]:
        for posterior in [part.local_posteriors.mean(axis=0), *part.local_posteriors]:
            for rows in (slice(200), slice(1000), slice(None)):
                assert likely_order(posterior[rows], part.labels[rows]) is None
    pooled, k = record.calibration.local_posteriors.mean(axis=0), len(record.class_names)
    shuffled = np.roll(np.arange(k), 1)
    found = likely_order(pooled[:, shuffled], record.calibration.labels)
    if record.dataset in ("adult", "credit"):  # nearly all answers are the common one of two: swapped, they look poor
        assert found is None
        return
    assert found is not None
    answered = np.bincount(pooled[:, shuffled].argmax(axis=1), minlength=k) >= min(10, len(pooled) / k / 4)
    assert np.mean(found[0][answered] == shuffled[answered]) > 0.7, "a class that nobody answers cannot be placed"


def test_poor_but_honest_models_are_never_refused():
    for seed in range(400):
        rng = np.random.default_rng(seed)
        k, n = int(rng.choice([2, 3, 5, 10, 40])), int(rng.choice([40, 100, 300, 1000]))
        labels = rng.choice(k, n, p=rng.dirichlet(np.full(k, rng.choice([0.3, 1, 10]))))
        strength = rng.choice([0, 0.1, 0.3, 1])
        logits = rng.normal(size=(n, k)) + rng.choice([0, 1, 4]) * rng.normal(size=k) + strength * np.eye(k)[labels]
        assert likely_order(np.exp(logits), labels) is None, seed
    constant = np.tile([0.1, 0.9], (500, 1))
    assert likely_order(constant, (np.arange(500) % 20 == 0).astype(int)) is None
