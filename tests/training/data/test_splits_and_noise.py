import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gainroute.errors import DataError, SettingError
from gainroute.io.preprocess import fit_standardiser
from gainroute.training.data import load_dataset
from gainroute.training.data.augment import FlipShift, shift_images
from gainroute.training.data.dataset import Part
from gainroute.training.data.noise import UNITS, add_noise, noise_deviations, noisy_classes
from gainroute.training.data.quadrants import joined, quadrants
from gainroute.training.data.splits import split_hash, stratified_split


@given(st.lists(st.integers(0, 4), min_size=4, max_size=200), st.floats(0.05, 0.95), st.integers(0, 5))
def test_a_split_is_a_partition_with_every_class_in_proportion(labels: list[int], share: float, seed: int) -> None:
    first, second = stratified_split(labels, share, seed)
    assert sorted([*first, *second]) == list(range(len(labels)))
    assert len(second) == round(share * len(labels))
    for k in set(labels):
        count = labels.count(k)
        assert abs(sum(labels[i] == k for i in second) - share * count) <= 1


def test_a_split_follows_its_seed_and_the_hash_follows_the_split() -> None:
    labels = np.arange(100) % 5
    one, again, other = (stratified_split(labels, 0.2, seed)[1] for seed in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert split_hash((one, labels[one])) == split_hash((again, labels[again]))
    assert split_hash((one, labels[one])) != split_hash((other, labels[other]))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match="share is"):
        stratified_split([0, 1], share, 0)


def test_digits_keep_their_test_part_and_show_each_party_its_quadrant() -> None:
    digits = load_dataset("digits")
    assert (len(digits.train), len(digits.test), digits.classes) == (1258, 539, 10)
    assert [view.shape[1:] for view in digits.test.views] == [(1, 4, 4)] * 4
    from sklearn.datasets import load_digits

    images = load_digits().images
    row = 7
    rebuilt = np.block([[digits.test.views[0][row, 0], digits.test.views[1][row, 0]],
                        [digits.test.views[2][row, 0], digits.test.views[3][row, 0]]])  # fmt: skip
    assert np.allclose(rebuilt * 16, images[digits.test.ids[row]])


def test_an_unknown_source_and_a_missing_folder_are_named() -> None:
    with pytest.raises(SettingError, match="is 'mnist'; allowed are 'digits', 'modelnet40', 'cifar10'"):
        load_dataset("mnist")
    with pytest.raises(DataError, match="--data-dir"):
        load_dataset("cifar10")


def test_noise_is_seeded_nested_in_its_classes_and_of_the_deviation_asked_for() -> None:
    assert set(noisy_classes(40, 10, 3)) < set(noisy_classes(40, 20, 3))
    assert not np.array_equal(noisy_classes(40, 10, 3), noisy_classes(40, 10, 4))
    views = [np.zeros((400, 1, 6, 6), np.float32), np.zeros((400, 3), np.float32)]
    deviations = [np.array([0.25]), np.array([0.25, 1.0, 0.0])]
    noisy = add_noise(views, deviations, seed=1)
    assert noisy[0].dtype == noisy[1].dtype == np.float32
    assert abs(noisy[0].std() - 0.25) < 0.01
    assert abs(noisy[0].mean()) < 0.01
    assert np.allclose(noisy[1].std(axis=0), deviations[1], rtol=0.1)
    assert np.array_equal(noisy[1], add_noise(views, deviations, seed=1)[1])
    with pytest.raises(SettingError, match="41 noisy classes"):
        noisy_classes(40, 41, 0)


def test_the_unit_of_the_noise_is_that_of_the_views_before_they_are_standardised() -> None:
    raw = np.random.default_rng(0).random((300, 2, 4, 4)).astype(np.float32) * np.array([[[1.0]], [[0.2]]], np.float32)
    scaler = fit_standardiser(raw)
    scales = [np.asarray(scaler.deviation)]
    standardised, half, whole = (noise_deviations(unit, 0.25, scales)[0] for unit in UNITS)
    assert np.array_equal(standardised, [0.25, 0.25])
    assert np.allclose(whole, 2 * half), "from -1 to 1 there are two units"
    (noisy,) = add_noise([scaler(raw)], [whole], seed=0)
    back = noisy * np.asarray(scaler.deviation)[:, None, None] + np.asarray(scaler.mean)[:, None, None]
    assert np.allclose((back - raw).std(axis=(0, 2, 3)), 0.25, rtol=0.05)
    with pytest.raises(SettingError, match=r"unit of the noise is '0..255': one of 'standardised', '-1..1', '0..1'"):
        noise_deviations("0..255", 0.25, scales)
    with pytest.raises(SettingError, match="sigma is -1"):
        noise_deviations("0..1", -1, scales)


def test_standardising_gives_mean_0_and_variance_1_a_channel_of_the_training_part() -> None:
    rng = np.random.default_rng(0)
    view = rng.normal([[[[3.0]], [[-2.0]]]], [[[[2.0]], [[0.5]]]], (200, 2, 5, 5)).astype(np.float32)
    scaled = fit_standardiser(view)(view)
    assert np.allclose(scaled.mean(axis=(0, 2, 3)), 0, atol=1e-4)
    assert np.allclose(scaled.std(axis=(0, 2, 3)), 1, atol=1e-4)
    constant = np.ones((4, 1, 2, 2), np.float32)
    assert np.array_equal(fit_standardiser(constant)(constant), np.zeros_like(constant))


def test_quadrants_of_one_seed_are_cut_from_the_same_mirrored_and_shifted_image() -> None:
    images = np.random.default_rng(0).random((30, 3, 8, 8)).astype(np.float32)
    views = quadrants(images)
    assert np.array_equal(joined(views), images)
    rows = np.arange(5, 30)
    mirror = FlipShift(views, flip=True, shift=0)
    seen = joined([mirror(party, rows, np.random.default_rng(5)) for party in range(4)])
    turned = (seen == images[rows][..., ::-1]).all(axis=(1, 2, 3))
    assert np.array_equal(turned, ~(seen == images[rows]).all(axis=(1, 2, 3)))
    assert 0 < turned.sum() < len(rows)
    shift = FlipShift(views, flip=False, shift=1)
    moved = joined([shift(party, rows, np.random.default_rng(5)) for party in range(4)])
    assert np.array_equal(moved, shift_images(images[rows], 1, np.random.default_rng(5)))
    assert not np.array_equal(moved, images[rows])
    assert np.array_equal(joined(views), images), "the clean views are left alone"


def test_a_party_with_fewer_samples_is_an_error_with_the_counts() -> None:
    with pytest.raises(DataError, match=r"5 labels, 5 ids, views of \[5, 4\] samples"):
        Part(np.arange(5), np.zeros(5, np.int64), (np.zeros((5, 2)), np.zeros((4, 2))))
