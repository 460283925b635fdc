"""Tables split by columns, and feature views: small files in the formats of the public distributions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gainroute.errors import DataError, SettingError
from gainroute.experiments.config import load_config
from gainroute.experiments.runner import run_cell
from gainroute.training.data import load_dataset
from gainroute.training.data.adult import _NAMES
from gainroute.training.data.credit import PARTIES as CREDIT
from gainroute.training.prepare import prepare_dataset

# ---- Adult --------------------------------------------------------------------------------------


def adult_rows(count: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        work, job = ("?", "?") if i % 7 == 0 else ("Private", ["Sales", "Tech-support"][i % 2])
        age, weight, income = str(rng.integers(17, 90)), str(rng.integers(10**4, 10**6)), [">50K", "<=50K"][i % 4 > 0]
        person = ["HS-grad", "9", "Divorced", job, "Wife", "White", "Female"]
        rows.append([age, work, weight, *person, str(999 * (i % 5 == 0)), "0", "40", "Peru", income])
    return rows


def write_official(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adult.data").write_text("\n".join(", ".join(row) for row in adult_rows(40, 0)) + "\n\n")
    lines = [", ".join(row) + "." for row in adult_rows(20, 1)]
    (folder / "adult.test").write_text("\n".join(["|1x3 Cross validator", *lines]) + "\n")


def write_csv(path: Path, header: tuple[str, ...], rows: list[list[str]]) -> None:
    path.write_text("\n".join(",".join(row) for row in [list(header), *rows]) + "\n")


@pytest.mark.parametrize("inside", ["adult", "."])
def test_adult_has_its_official_split(tmp_path: Path, inside: str) -> None:
    write_official(tmp_path / inside)
    found = load_dataset("adult", tmp_path)
    assert (len(found.train), len(found.test), found.class_names) == (40, 20, ("<=50K", ">50K"))
    assert found.party_names == ("employer", "registry-office", "bank")
    assert found.test.labels.mean() == 0.25
    assert len(np.unique(np.concatenate([found.train.ids, found.test.ids]))) == 60
    employer, _, bank = found.train.views
    assert employer["workclass"][0] == "?", "unknown is a category like any other"
    assert bank["capital-gain"][0] == pytest.approx(np.log(1000)), "sums of money are logged"
    held = [name for view in found.train.views for name in view.dtype.names or ()]
    assert sorted([*held, "fnlwgt", "income"]) == sorted(_NAMES), "each column has one holder, fnlwgt none"


def test_adult_as_one_table_has_a_fixed_test_part(tmp_path: Path) -> None:
    header = tuple(name.replace("-", ".") for name in _NAMES)
    write_csv(tmp_path / "adult.csv", header, adult_rows(40, 0))
    found = load_dataset("adult", tmp_path)
    assert (len(found.train), len(found.test), found.test.labels.sum()) == (28, 12, 3)
    again = load_dataset("adult", tmp_path)
    np.testing.assert_array_equal(found.test.ids, again.test.ids)


def test_a_table_is_encoded_by_its_training_part(tmp_path: Path) -> None:
    write_official(tmp_path)
    prepared = prepare_dataset(load_dataset("adult", tmp_path), 0.2, 0)
    shapes = [view.shape for view in prepared.test.views]
    assert shapes == [(20, 2 + 3), (20, 1), (20, 1)], "constant columns tell nothing"
    assert prepared.train.views[2].clean.mean() == pytest.approx(0, abs=1e-6)
    np.testing.assert_array_equal(prepared.test.views[0].sum(axis=1), 2)


def test_noise_on_a_table_is_refused(tmp_path: Path) -> None:
    write_official(tmp_path)
    config = load_config("adult")
    noisy = replace(config, noise=replace(config.noise, classes=(0, 1)))
    with pytest.raises(SettingError, match=r"noise.classes is \[0, 1\], but adult has tables"):
        run_cell(noisy, 0, data_dir=tmp_path)


def test_files_that_are_no_adult_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="read from files: name their folder with --data-dir"):
        load_dataset("adult")
    with pytest.raises(DataError, match=r"holds none of adult/adult.data, adult.data, adult.csv"):
        load_dataset("adult", tmp_path)
    rows, path = adult_rows(9, 0), tmp_path / "adult.csv"
    write_csv(path, ("years", *_NAMES[1:]), rows)
    with pytest.raises(DataError, match="has no column 'age'; it has years, workclass"):
        load_dataset("adult", tmp_path)
    write_csv(path, _NAMES, [*rows, rows[0][:-1]])
    with pytest.raises(DataError, match="row 9 has 14 cells, but there are 15 columns"):
        load_dataset("adult", tmp_path)
    write_csv(path, _NAMES, [*rows, [*rows[0][:-1], "rich"]])
    with pytest.raises(DataError, match="has the label 'rich': allowed are <=50K, >50K"):
        load_dataset("adult", tmp_path)
    write_csv(path, _NAMES, [*rows, ["old", *rows[0][1:]]])
    with pytest.raises(DataError, match="column 'age' holds something that is no number"):
        load_dataset("adult", tmp_path)
    write_csv(path, _NAMES, [])
    with pytest.raises(DataError, match="holds no row"):
        load_dataset("adult", tmp_path)
    path.unlink()
    (tmp_path / "adult.data").write_text(", ".join(rows[0]))
    with pytest.raises(DataError, match=r"holds none of adult.test: the test part"):
        load_dataset("adult", tmp_path)


# ---- credit default -----------------------------------------------------------------------------

CREDIT_COLUMNS = (
    "ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *CREDIT[1].columns, *CREDIT[2].columns, "default"
)  # fmt: skip


def credit_rows() -> list[list[str]]:
    delays = ["2", "-1", "0", "0", "-2", "-2"]
    return [[str(i), "20000", "2", "2", "1", "24", *delays, *["-30"] * 12, str(i % 5 // 4)] for i in range(20)]


@pytest.mark.parametrize("file", ["credit.csv", "UCI_Credit_Card.csv", "default of credit card clients.csv"])
def test_credit_default_in_three_copies(tmp_path: Path, file: str) -> None:
    rows, header = credit_rows(), CREDIT_COLUMNS
    if file == "credit.csv":
        header = tuple("GENDER" if name == "SEX" else name for name in header)
    write_csv(tmp_path / file, header, rows)
    if file.startswith("default"):
        first = ",".join(["", *(f"X{i}" for i in range(1, 24)), "Y"])
        (tmp_path / file).write_text(first + "\n" + (tmp_path / file).read_text())
    found = load_dataset("credit", tmp_path)
    assert (len(found.train), len(found.test)) == (14, 6)
    assert found.party_names == ("lender", "credit-bureau", "card-processor")
    lender, bureau, processor = found.train.views
    assert (lender["SEX"][0], bureau["PAY_2"][0]) == ("2", "-1")
    assert processor["BILL_AMT1"][0] == pytest.approx(-np.log(31))
    assert found.train.labels.sum() + found.test.labels.sum() == 4
    write_csv(tmp_path / file, tuple(name.replace("AGE", "YEARS") for name in header), rows)
    with pytest.raises(DataError, match="has no column 'AGE'"):
        load_dataset("credit", tmp_path)


# ---- feature views ------------------------------------------------------------------------------


def leaves() -> tuple[list[np.ndarray], np.ndarray]:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(3), 16)
    return [rng.random((48, 4)).astype(np.float32) for _ in range(3)], labels


def test_the_leaf_without_a_texture_is_left_out_of_either_copy(tmp_path: Path) -> None:
    views, labels = leaves()
    names = ["Acer Campestre", "Betula", "Quercus"]
    text = tmp_path / "text/100 leaves plant species"
    text.mkdir(parents=True)
    for word, view in zip(("Mar", "Sha", "Tex"), views, strict=True):
        lines = [",".join([names[k], *(f"{x:.9g}" for x in row)]) for k, row in zip(labels, view, strict=True)]
        (text / f"data_{word}_64.txt").write_text("\n".join(lines[word == "Tex" :]) + "\n")
    views[2][0] = views[2][1:16].mean(axis=0)
    np.savez(tmp_path / "leaves100.npz", view0=views[0], view1=views[1], view2=views[2], labels=labels)
    one, two = load_dataset("leaves100", tmp_path), load_dataset("leaves100", tmp_path / "text")
    assert (len(one.train), len(one.test), one.party_names) == (33, 14, ("margin", "shape", "texture"))
    assert two.class_names == tuple(names)
    for mine, other in zip(one.train.views, two.train.views, strict=True):
        np.testing.assert_allclose(mine, other)
    np.testing.assert_array_equal(one.test.labels, two.test.labels)
    (text / "data_Sha_64.txt").write_text("Betula,1,2\nBetula,1,?\n")
    with pytest.raises(DataError, match="a row is no name with numbers"):
        load_dataset("leaves100", tmp_path / "text")


def test_views_of_videos(tmp_path: Path) -> None:
    views, labels = leaves()
    np.savez(tmp_path / "ccv.npz", view0=views[0], view1=views[1], view2=views[2], labels=labels)
    found = load_dataset("ccv", tmp_path)
    assert (len(found.train), len(found.test), found.classes) == (34, 14, 3)
    np.savez(tmp_path / "ccv.npz", view0=views[0], view1=views[1][1:], view2=views[2], labels=labels)
    with pytest.raises(DataError, match=r"view1 has shape \(47, 4\) and type float32, beside 48 labels"):
        load_dataset("ccv", tmp_path)
    np.savez(tmp_path / "ccv.npz", view0=views[0], labels=labels)
    with pytest.raises(DataError, match="has no 'view1'"):
        load_dataset("ccv", tmp_path)
