"""Embedding codecs: what arrives is what was sent, as nearly as the codec says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gainroute.errors import SettingError, ShapeError
from gainroute.routing.payload import CODECS, communication_cost, decode, embedding_bytes, encode, round_trip

TOLERANCE = {"float32": 0, "float16": 2**-11, "int8": 0.5 / 127}


@given(seed=st.integers(0, 1000), rows=st.integers(0, 5), dimension=st.integers(1, 9), codec=st.sampled_from(CODECS))
def test_values_arrive_to_within_the_codecs_precision(seed, rows, dimension, codec):
    values = (np.random.default_rng(seed).normal(size=(rows, dimension)) * 10).astype(np.float32)
    found = round_trip(values, codec)
    assert found.dtype == np.float32
    largest = np.abs(values).max(axis=1, initial=0, keepdims=True)
    assert (np.abs(found - values) <= TOLERANCE[codec] * 1.01 * largest + 1e-7).all()


@pytest.mark.parametrize("codec", CODECS)
def test_a_sample_that_is_lacking_stays_lacking(codec):
    values = np.array([[1, 2], [np.nan, np.nan], [0, 0]], np.float32)
    found = round_trip(values, codec)
    assert np.isnan(found[1]).all()
    assert not np.isnan(found[[0, 2]]).any()


def test_sizes_are_those_of_the_codec():
    values = np.zeros((3, 10), np.float32)
    assert [len(encode(values, c)) for c in CODECS] == [120, 60, 42]


def test_bad_bytes_and_unknown_codecs():
    with pytest.raises(SettingError, match="codec is 'bf16'; allowed are 'float32', 'float16', 'int8'"):
        encode(np.zeros((1, 2), np.float32), "bf16")
    with pytest.raises(ShapeError, match="7 bytes of float32 for 1 × 2 values; 8 are needed"):
        decode(b"1234567", 1, 2, "float32")


def test_values_beyond_half_precision_are_clipped_not_infinite():
    assert np.isfinite(round_trip(np.array([[1e6, -1e6]], np.float32), "float16")).all()


@pytest.mark.parametrize("codec", CODECS)
def test_the_cost_of_a_sample_counts_the_bytes_that_are_sent(codec):
    sent = sum(len(encode(np.zeros((1, d), np.float32), codec)) for d in (10, 3))
    assert embedding_bytes([10, 3], codec) == sent
    assert communication_cost(4, [10, 3], 0.5, codec=codec) == 2 * 4 * 4 + 0.5 * sent
