"""The one check of a party's answer, and the party's own check before it sends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gainroute.federation.party.model import ModelVersion
from gainroute.federation.transport.base import ModelDescription, PartyRefusedError, Reply


def posteriors(rows, classes):
    return np.random.default_rng(rows).dirichlet(np.ones(classes), size=rows).astype(np.float32)


@given(rows=st.integers(1, 40), classes=st.integers(2, 12))
def test_posteriors_are_accepted(rows, classes):
    values = posteriors(rows, classes)
    assert Reply.checked("a", values, values.shape, values.nbytes, posterior=True).values is values


@given(
    rows=st.integers(1, 40),
    classes=st.integers(2, 12),
    wrong=st.sampled_from([(np.nan, "NaN"), (np.inf, "sums to inf"), (-0.2, "negative"), (1.5, "sums to")]),
    data=st.data(),
)
def test_one_wrong_number_anywhere_is_found_and_named(rows, classes, wrong, data):
    values = posteriors(rows, classes)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, classes - 1))
    value, message = wrong
    values[row, column] = value
    with pytest.raises(PartyRefusedError, match=message):
        Reply.checked("a", values, values.shape, values.nbytes, posterior=True)


@given(rows=st.integers(1, 12), data=st.data())
def test_rows_of_nan_are_samples_that_the_party_does_not_have(rows, data):
    values = posteriors(rows, 3)
    lacking = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
    values[lacking] = np.nan
    version = ModelVersion(ModelDescription("m", 2), ("x", "y", "z"), lambda _: values, lambda _: values)
    there, missing = version.answer(["id"] * rows, posterior=True)
    assert missing.tolist() == lacking
    assert np.array_equal(there, np.delete(values, lacking, axis=0))
    reply = Reply.checked("a", there, (rows, 3), there.nbytes, posterior=True, missing=missing.tolist())
    np.testing.assert_array_equal(reply.values, values)


@pytest.mark.parametrize("missing", [[-1], [4], [2, 1], [1, 1]])
def test_missing_positions_ascend_within_the_request(missing):
    values = posteriors(4 - len(missing), 3)
    with pytest.raises(PartyRefusedError, match="ascend"):
        Reply.checked("a", values, (4, 3), 0, posterior=True, missing=missing)


@pytest.mark.parametrize("values", [np.zeros((2, 5), np.float32), np.zeros((3, 4), np.float32), np.zeros((2, 4))])
def test_another_shape_or_type_than_requested_is_refused(values):
    with pytest.raises(PartyRefusedError, match=r"float32 of shape \(2, 4\) is expected"):
        Reply.checked("a", values, (2, 4), 0, posterior=False)
