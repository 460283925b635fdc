"""What a party may answer to be believed, for a few numbers and for many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gainroute.federation.transport.base import PartyRefusedError
from gainroute.federation.transport.checks import check_values, split_missing


def posteriors(rows, classes):
    return np.random.default_rng(rows).dirichlet(np.ones(classes), size=rows).astype(np.float32)


@given(rows=st.integers(1, 40), classes=st.integers(2, 12))
def test_posteriors_are_believed(rows, classes):
    check_values("a", posteriors(rows, classes), posterior=True)


@given(
    rows=st.integers(1, 40),
    classes=st.integers(2, 12),
    wrong=st.sampled_from([(np.nan, "NaN"), (np.inf, "NaN or inf"), (-0.2, "negative"), (1.5, "sums to")]),
    data=st.data(),
)
def test_one_wrong_number_anywhere_is_found_and_named(rows, classes, wrong, data):
    values = posteriors(rows, classes)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, classes - 1))
    value, told = wrong
    values[row, column] = value
    with pytest.raises(PartyRefusedError, match=told):
        check_values("a", values, posterior=True)


@given(rows=st.integers(1, 12), data=st.data())
def test_rows_of_nan_are_samples_that_the_party_lacks(rows, data):
    values = posteriors(rows, 3)
    lacking = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
    values[lacking] = np.nan
    there, missing = split_missing(values, rows, 3)
    assert missing.tolist() == lacking
    assert np.array_equal(there, np.delete(values, lacking, axis=0))
