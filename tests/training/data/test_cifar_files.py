import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gainroute.errors import DataError
from gainroute.training.data.cifar import download, load_cifar
from gainroute.training.data.cifar_layout import LAYOUTS, CifarLayout
from gainroute.training.data.cifar_pickle import load_arrays
from gainroute.training.data.settings import AugmentSettings


def _batch(rng: np.random.Generator, label_bytes: int) -> tuple[bytes, bytes]:
    """The same six samples in binary and in python form."""
    labels = rng.integers(0, 10, (6, label_bytes)).astype(np.uint8)
    pixels = rng.integers(0, 256, (6, 3072)).astype(np.uint8)
    key = b"labels" if label_bytes == 1 else b"fine_labels"
    body = {b"data": pixels, key: labels[:, -1].tolist(), b"batch_label": b"a batch"}
    # Protocol 4 is the newest in which numpy rebuilds arrays as the official files do.
    return np.concatenate([labels, pixels], axis=1).tobytes(), pickle.dumps(body, protocol=4)


def _write(root: Path, name: str) -> CifarLayout:
    """Both official forms in small, and a layout with their checksums."""
    layout, rng = LAYOUTS[name], np.random.default_rng(0)
    sums: dict[str, dict[str, Any]] = {"binary": {}, "python": {}}
    for part in ("train", "test"):
        names = zip(getattr(layout.binary, part), getattr(layout.python, part), strict=True)
        for pair in names:
            for form, file, data in zip(("binary", "python"), pair, _batch(rng, layout.label_bytes), strict=True):
                version = getattr(layout, form)
                (root / version.folder).mkdir(exist_ok=True)
                (root / version.folder / file).write_bytes(data)
                digest = hashlib.new(version.algorithm, data, usedforsecurity=False).hexdigest()
                sums[form].setdefault(part, {})[file] = digest
    return replace(
        layout, binary=replace(layout.binary, **sums["binary"]), python=replace(layout.python, **sums["python"])
    )


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_binary_and_python_form_give_the_same_quadrants(tmp_path: Path, name: str) -> None:
    layout = _write(tmp_path, name)
    binary = load_cifar(name, tmp_path, AugmentSettings(flip=True, shift=2), layout)
    for file in (tmp_path / layout.binary.folder).iterdir():
        file.unlink()
    (tmp_path / layout.binary.folder).rmdir()
    python = load_cifar(name, tmp_path, None, layout)
    assert np.array_equal(binary.train.labels, python.train.labels)
    for a, b in zip(binary.test.views, python.test.views, strict=True):
        assert np.array_equal(a, b)
        assert a.shape == (6, 3, 16, 16)
    assert binary.augment is not None
    assert python.augment is None
    assert len({*binary.train.ids, *binary.test.ids}) == len(binary.train) + len(binary.test)


def test_quadrants_are_where_their_names_say(tmp_path: Path) -> None:
    layout = _write(tmp_path, "cifar10")
    raw = np.frombuffer((tmp_path / layout.binary.folder / "test_batch.bin").read_bytes(), np.uint8).reshape(6, -1)
    image = raw[0, 1:].reshape(3, 32, 32)
    dataset = load_cifar("cifar10", tmp_path, None, layout)
    assert dataset.party_names[1] == "top-right"
    assert np.allclose(dataset.test.views[1][0] * 255, image[:, :16, 16:])


def test_damaged_truncated_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--download"):
        load_cifar("cifar10", tmp_path)
    layout = _write(tmp_path, "cifar10")
    file = tmp_path / layout.binary.folder / "data_batch_3.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged: sha1"):
        load_cifar("cifar10", tmp_path, None, layout)
    short = whole[:5000]
    train = {**layout.binary.train, file.name: hashlib.sha1(short, usedforsecurity=False).hexdigest()}
    file.write_bytes(short)
    with pytest.raises(DataError, match="5000 bytes: not a whole number of rows of 3073"):
        load_cifar("cifar10", tmp_path, None, replace(layout, binary=replace(layout.binary, train=train)))
    file.unlink()
    with pytest.raises(DataError, match="does not exist"):
        load_cifar("cifar10", tmp_path, None, layout)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("owned").touch, ())


@pytest.mark.parametrize("thing", [_Evil(), {b"data": print}, [pickle.Unpickler]])
def test_a_pickle_that_asks_for_anything_but_arrays_is_refused_and_not_run(
    thing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="only numpy arrays are allowed"):
        load_arrays(pickle.dumps(thing, protocol=4), "batch")
    assert not Path("owned").exists()


def test_the_pickles_of_python_2_and_numpy_1_are_read() -> None:
    old = (
        b"\x80\x02}q\x01U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x02\x85cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\x01\x02tbs."
    )
    assert load_arrays(old, "batch")[b"data"].tolist() == [1, 2]


def _archive(root: Path, layout: CifarLayout) -> Path:
    path = root / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(root / layout.binary.folder, arcname=layout.binary.folder)
        escape = tarfile.TarInfo("../escaped")
        escape.size = 1
        tar.addfile(escape, io.BytesIO(b"x"))
    return path


def test_a_download_is_checked_and_unpacks_only_known_files(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    layout = _write(tmp_path / "origin", "cifar100")
    archive = _archive(tmp_path / "origin", layout)
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    good = replace(layout, binary=replace(layout.binary, archive=archive.as_uri(), archive_md5=md5))
    folder = download("cifar100", tmp_path / "deep" / "data", good)
    assert sorted(file.name for file in folder.iterdir()) == ["test.bin", "train.bin"]
    assert not (tmp_path / "deep" / "escaped").exists()
    bad = replace(good, binary=replace(good.binary, archive_md5="0" * 32))
    with pytest.raises(DataError, match=f"md5 {md5}, expected 000"):
        download("cifar100", tmp_path / "other", bad)
    assert not (tmp_path / "other").exists()


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    layout = LAYOUTS["cifar10"]
    nowhere = replace(layout, binary=replace(layout.binary, archive=(tmp_path / "none.tar.gz").as_uri()))
    with pytest.raises(DataError, match="without a network, fetch it elsewhere and unpack it"):
        download("cifar10", tmp_path, nowhere)
