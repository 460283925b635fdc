"""CIFAR-10 and CIFAR-100 for four parties, one quadrant each, from the official binary or python files."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import write_bytes
from gainroute.errors import DataError
from gainroute.routing.types import IntArray
from gainroute.training.data.augment import FlipShift
from gainroute.training.data.cifar_layout import LAYOUTS, CifarFiles, CifarLayout
from gainroute.training.data.cifar_pickle import load_arrays
from gainroute.training.data.dataset import Dataset, Part, required_folder
from gainroute.training.data.quadrants import QUADRANTS, quadrants
from gainroute.training.data.settings import AugmentSettings, DataSettings

__all__ = ["Cifar", "cifar10", "cifar100", "download", "load_cifar", "read_binary", "read_python"]

_PIXELS = 3 * 32 * 32

Images = npt.NDArray[np.uint8]


def read_binary(data: bytes, label_bytes: int, where: str) -> tuple[Images, IntArray]:
    """Images (N, 3, 32, 32) and labels of one file of the binary form."""
    row = label_bytes + _PIXELS
    if not data or len(data) % row:
        raise DataError(f"{where} has {len(data)} bytes: not a whole number of rows of {row}; fetch it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].astype(np.int64)


def read_python(data: bytes, label_key: bytes, where: str) -> tuple[Images, IntArray]:
    """Images (N, 3, 32, 32) and labels of one file of the python form; only arrays are unpickled."""
    batch: Any = load_arrays(data, where)
    if not isinstance(batch, dict) or not {b"data", label_key} <= set(batch):
        raise DataError(f"{where} holds no {label_key.decode()!r} beside 'data': it is not a CIFAR batch")
    images, labels = np.asarray(batch[b"data"]), np.asarray(batch[label_key], dtype=np.int64)
    if images.dtype != np.uint8 or images.shape != (len(labels), _PIXELS):
        raise DataError(f"{where}: images are {images.dtype} {images.shape}, expected uint8 ({len(labels)}, {_PIXELS})")
    return images.reshape(-1, 3, 32, 32), labels


def _read(folder: Path, version: CifarFiles, layout: CifarLayout, part: str) -> tuple[Images, IntArray]:
    read = []
    for name, checksum in (version.train if part == "train" else version.test).items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} does not exist: unpack {version.archive} again, or use --download")
        data = path.read_bytes()
        found = hashlib.new(version.algorithm, data, usedforsecurity=False).hexdigest()
        if found != checksum:
            raise DataError(
                f"{path} is damaged: {version.algorithm} {found}, expected {checksum}; delete it and fetch the archive "
                "again"
            )
        if version is layout.binary:
            read.append(read_binary(data, layout.label_bytes, str(path)))
        else:
            read.append(read_python(data, layout.label_key, str(path)))
    images, labels = zip(*read, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def load_cifar(
    name: str, data_dir: Path, augment: AugmentSettings | None = None, layout: CifarLayout | None = None
) -> Dataset:
    """Read the official files of "cifar10" or "cifar100" under `data_dir`, the binary form if both are there.

    `augment` flips and shifts the training quadrants; `layout` replaces the official file names and checksums.
    """
    layout = layout or LAYOUTS[name]
    found = [version for version in (layout.binary, layout.python) if (data_dir / version.folder).is_dir()]
    if not found:
        raise DataError(
            f"neither {layout.binary.folder} nor {layout.python.folder} is in {data_dir}: unpack "
            f"{layout.binary.archive} there, or use --download where there is a network"
        )
    version, parts, first = found[0], [], 0
    for part in ("train", "test"):
        images, labels = _read(data_dir / version.folder, version, layout, part)
        if int(labels.max()) >= len(layout.class_names):
            raise DataError(
                f"{version.folder}: label {labels.max()} of {len(layout.class_names)} classes; fetch it again"
            )
        parts.append(Part(np.arange(first, first + len(labels)), labels, quadrants(images / np.float32(255))))
        first += len(labels)
    altered = None
    if augment is not None and (augment.flip or augment.shift):
        altered = FlipShift(parts[0].views, flip=augment.flip, shift=augment.shift)
    return Dataset(name, parts[0], parts[1], layout.class_names, QUADRANTS, altered)


def download(name: str, data_dir: Path, layout: CifarLayout | None = None, timeout: float = 30.0) -> Path:
    """Download the official binary archive, verify it, unpack the known files, and return their folder.

    The folder is created under `data_dir`; the server has `timeout` seconds to answer.
    """
    version = (layout or LAYOUTS[name]).binary
    try:
        with urllib.request.urlopen(version.archive, timeout=timeout) as answer:  # noqa: S310 (address is ours)
            body = answer.read()
    except (OSError, HTTPException) as error:  # a URLError is an OSError
        raise DataError(
            f"{version.archive} could not be fetched ({error}): without a network, fetch it elsewhere and "
            f"unpack it in {data_dir}, so that {data_dir / version.folder} exists"
        ) from error
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
    if digest != version.archive_md5:
        raise DataError(f"{version.archive} came with md5 {digest}, expected {version.archive_md5}: try again")
    folder = data_dir / version.folder
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        for file in (*version.train, *version.test):
            # Only known files, under names of our own: paths inside the archive are never used.
            member = archive.extractfile(f"{version.folder}/{file}")
            if member is None:
                raise DataError(f"{version.archive} lacks {file}: try again")
            write_bytes(folder / file, member.read())
    return folder


@dataclass(frozen=True)
class Cifar:
    """Loads CIFAR-10 or CIFAR-100, and downloads it."""

    name: str

    def __call__(self, settings: DataSettings, data_dir: Path | None, /) -> Dataset:
        """Load the quadrants."""
        return load_cifar(self.name, required_folder(self.name, data_dir), settings.augment)

    def download(self, data_dir: Path) -> None:
        """Download the official archive, unless its folder is there."""
        if not (data_dir / LAYOUTS[self.name].binary.folder).is_dir():
            download(self.name, data_dir)


cifar10, cifar100 = Cifar("cifar10"), Cifar("cifar100")
