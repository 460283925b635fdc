"""From the official tree of OFF meshes to ``points.npz``: area-weighted samples, in parallel, cached.

The tree is ``ModelNet40/<class>/{train,test}/<name>.off``. Every cloud is saved as soon as it is sampled, so that an
interrupted run resumes.
"""

from __future__ import annotations

import io
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gainroute._util.files import write_bytes, write_npz
from gainroute._util.progress import Progress
from gainroute.errors import DataError, SettingError
from gainroute.routing.types import IntArray

__all__ = ["Mesh", "build_points", "points_needed", "read_off", "sample_mesh"]

_PARTS = ("train", "test")


@dataclass(frozen=True)
class Mesh:
    """Vertices (V, 3) and triangles (F, 3) that index them."""

    vertices: npt.NDArray[np.float64]
    triangles: IntArray


def points_needed(image_size: int) -> int:
    """Number of points for a surface without holes in an image of that size: four per pixel."""
    return 4 * image_size * image_size


def read_off(path: Path) -> Mesh:
    """Read an OFF file, also one whose first line continues with the counts (``OFF490 518 0``).

    Faces with more than three corners become fans of triangles.
    """
    try:
        words = path.read_text(encoding="ascii", errors="replace").split()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): fetch the official archive again") from error
    if not words or not words[0].startswith("OFF"):
        raise DataError(f"{path} does not begin with 'OFF': it is not an OFF mesh")
    numbers = [words[0][3:], *words[1:]] if words[0] != "OFF" else words[1:]
    try:
        vertices, faces = int(numbers[0]), int(numbers[1])
        flat = np.array(numbers[3 : 3 + 3 * vertices], dtype=np.float64).reshape(vertices, 3)
        rest = iter(numbers[3 + 3 * vertices :])
        triangles = []
        for _ in range(faces):
            corners = [int(next(rest)) for _ in range(int(next(rest)))]
            triangles += [(corners[0], a, b) for a, b in pairwise(corners[1:])]
    except (ValueError, IndexError, StopIteration) as error:
        raise DataError(f"{path} is truncated or malformed ({error or 'too few numbers'}): fetch it again") from error
    indices = np.array(triangles, dtype=np.int64).reshape(-1, 3)
    if len(indices) == 0:
        raise DataError(f"{path} has {faces} faces and no triangle: a mesh without faces cannot be sampled")
    if not np.isfinite(flat).all():
        raise DataError(f"{path} has a vertex with NaN or infinite coordinates: fetch it again, or leave it out")
    if indices.min() < 0 or indices.max() >= vertices:
        raise DataError(f"{path} has a face with vertex {indices.max()}, but {vertices} vertices: fetch it again")
    return Mesh(flat, indices)


def sample_mesh(mesh: Mesh, count: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """`count` points (count, 3), uniform on the surface: a triangle is drawn by its area, then a point within it."""
    a, b, c = (mesh.vertices[mesh.triangles[:, corner]] for corner in range(3))
    areas = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    total = areas.sum()
    if not total > 0:
        raise DataError(f"a mesh of {len(areas)} faces has no area: all its triangles are degenerate")
    chosen = rng.choice(len(areas), count, p=areas / total)
    # The square root makes the density uniform within the triangle.
    root, along = np.sqrt(rng.random((count, 1))), rng.random((count, 1))
    points = (1 - root) * a[chosen] + root * (1 - along) * b[chosen] + root * along * c[chosen]
    return np.asarray(points, dtype=np.float32)


def _sample_file(job: tuple[Path, Path, int, int]) -> None:
    source, target, count, seed = job
    # Seeded by name, so that neither the order nor the number of workers matters.
    rng = np.random.default_rng([seed, zlib.crc32(source.stem.encode())])
    try:
        points = sample_mesh(read_off(source), count, rng)
    except DataError as error:
        raise DataError(f"{source}: {error}" if str(source) not in str(error) else str(error)) from error
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    points = (points - middle) / np.abs(points - middle).max()
    buffer = io.BytesIO()
    np.save(buffer, points.astype(np.float32), allow_pickle=False)
    write_bytes(target, buffer.getvalue())


def build_points(
    tree: Path, out: Path, *, count: int, seed: int = 0, workers: int = 2, progress: Progress | None = None
) -> Path:
    """Sample `count` points (see `points_needed`) of every mesh and write ``points.npz``, the path `out`.

    The tree has one folder per class. Clouds are cached in a folder next to `out`; `workers` processes sample them.
    """
    if count < 1:
        raise SettingError(f"{count} points per mesh: at least 1 is needed")
    classes = sorted(folder.name for folder in tree.iterdir() if folder.is_dir()) if tree.is_dir() else []
    files = {part: [f for name in classes for f in sorted((tree / name / part).glob("*.off"))] for part in _PARTS}
    empty = [part for part, found in files.items() if not found]
    if empty:
        raise DataError(f"{tree} holds no <class>/{empty[0]}/*.off: name the folder the official archive unpacks to")
    cache = out.parent / f"clouds-{count}-{seed}"
    cache.mkdir(parents=True, exist_ok=True)
    every = [(file, cache / f"{file.stem}.npy") for part in _PARTS for file in files[part]]
    jobs = [(file, target, count, seed) for file, target in every if not target.is_file()]
    progress = progress or Progress()
    progress.start("meshes", len(every), len(every) - len(jobs))
    if jobs:
        with ProcessPoolExecutor(max_workers=workers) as pool:
            for _ in pool.map(_sample_file, jobs, chunksize=8):
                progress.advance()
    arrays: dict[str, npt.NDArray[np.generic]] = {"classes": np.array(classes)}
    for part, found in files.items():
        arrays[f"points_{part}"] = np.stack([np.load(cache / f"{f.stem}.npy", allow_pickle=False) for f in found])
        arrays[f"y_{part}"] = np.array([classes.index(f.parent.parent.name) for f in found], dtype=np.int64)
        arrays[f"names_{part}"] = np.array([f.stem for f in found])
    write_npz(out, arrays)
    return out
