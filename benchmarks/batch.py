"""Batch routing: `gainroute route` on a folder of Parquet files, against a bare pyarrow loop over `Router.route`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.problems import posteriors
from benchmarks.rows import Row, interleaved, row, timed
from gainroute import ArrowRouter, ExpectedGainRouter, Router, save
from gainroute._util.engines import choose_engine
from gainroute._util.progress import Progress
from gainroute.io.decisions import COLUMNS
from gainroute.io.parquet_files import InputFiles
from gainroute.io.parquet_job import route_files
from gainroute.io.parquet_part import DICTIONARIES

__all__ = ["run"]

PARTIES, CLASSES, FILES, REPEATS = 4, 10, 10, 3
FEW = ("escalate", "score", "weak_prediction", "incomplete")
GIB = 1024.0  # in MiB
SAMPLED_EVERY = 0.05  # seconds


def run(rows: int = 1_000_000) -> Iterator[Row]:
    """Route `rows` samples, written as ten files to a temporary folder, which is removed afterwards."""
    local, labels = posteriors(CLASSES, 3000, PARTIES)
    router = ExpectedGainRouter().fit(local, labels, strong_posterior=local[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(router, folder / "router.safetensors")
        for i in range(FILES):
            _write(folder / f"in/{i}.parquet", rows // FILES, seed=i + 1)
        counts = f"{rows:,} rows, M = {PARTIES}, K = {CLASSES}"
        yield from _against_bare(f"{counts}, all columns", folder, router, rows, COLUMNS)
        yield from _against_bare(f"{counts}, score and weak answer", folder, router, rows, FEW)
        yield from _command(counts, folder, rows)


def _against_bare(what: str, folder: Path, router: Router, rows: int, columns: Sequence[str]) -> Iterator[Row]:
    inputs = InputFiles.find([folder / "in"])
    job = partial(route_files, ArrowRouter(router, columns=columns), "benchmark", inputs, progress=Progress())

    def ours(processes: int) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            job(out=Path(out), engine=choose_engine("local", processes))

    def bare() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            for path in inputs.files:
                _bare(path, Path(out) / path.name, router, columns)

    calls = [partial(_cpu, partial(ours, 1)), partial(_cpu, bare)]
    mine, other = (rows / seconds for seconds in interleaved(calls, REPEATS))
    against = "rows per CPU second in one process, against a bare pyarrow loop"
    yield row(f"{what}: {against}", mine, other, mine / other, ">= 0.8")
    two, one = interleaved([partial(timed, partial(ours, 2)), partial(timed, bare)], REPEATS)
    yield row(f"{what}: seconds of wall time with two processes, against the loop", two, one, one / two)


def _command(counts: str, folder: Path, rows: int) -> Iterator[Row]:
    options = ["route", "router.safetensors", "in", "--out", "out", "--processes", "2"]
    command = [sys.executable, "-m", "gainroute", *options]
    begin, peak = time.perf_counter(), 0.0
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)  # noqa: S603 (our own command)
        while job.poll() is None:
            peak = max(peak, _resident(job.pid))
            time.sleep(SAMPLED_EVERY)
    seconds = time.perf_counter() - begin
    if job.returncode:
        raise RuntimeError((folder / "log").read_text())
    what = f"{counts}: the command with two processes"
    yield row(f"{what}: seconds", seconds, None, None)
    yield row(f"{what}: rows per second", rows / seconds, None, None)
    yield row(
        f"{what}: resident MiB at the peak of all processes together, against 1 GiB", peak, GIB, peak / GIB, "<= 1"
    )


def _resident(process: int) -> float:
    """Largest resident memory so far of a process and of those it has started, added up, in MiB."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return 0.0
    own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
    return own / 1024 + sum(_resident(int(child)) for child in started)


def _bare(source: Path, target: Path, router: Router, columns: Sequence[str]) -> None:
    """What one would write by hand: no check of columns, absent parties or types, no resuming, no safe writing."""
    writer: Any = None
    with pq.ParquetFile(source) as file:
        for batch in file.iter_batches(2**17, use_threads=False):
            parties = [batch.column(f"posterior_{i}").flatten().to_numpy() for i in range(PARTIES)]
            decision = router.route(np.stack([values.reshape(-1, CLASSES) for values in parties]))
            arrays: dict[str, Any] = {"id": batch.column("id")}
            for name in columns:
                value = np.asarray(getattr(decision, name))
                value = np.full(len(decision), value) if value.ndim == 0 else value
                flat = pa.array(value.reshape(-1))
                arrays[name] = pa.FixedSizeListArray.from_arrays(flat, CLASSES) if value.ndim == 2 else flat
            table = pa.table(arrays)
            writer = writer or pq.ParquetWriter(target, table.schema, use_dictionary=DICTIONARIES)
            writer.write_table(table)
    writer.close()


def _write(path: Path, rows: int, seed: int) -> None:
    path.parent.mkdir(exist_ok=True)
    first, writer = 0, None
    while first < rows:
        count = min(100_000, rows - first)
        local, _ = posteriors(CLASSES, count, PARTIES, seed=1000 * seed + first // 100_000)
        lists = [pa.FixedSizeListArray.from_arrays(pa.array(p.astype(np.float32).reshape(-1)), CLASSES) for p in local]
        ids = pa.array(np.arange(first, first + count))
        table = pa.table({"id": ids, **{f"posterior_{i}": column for i, column in enumerate(lists)}})
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False)
        writer.write_table(table)
        first += count
    if writer:
        writer.close()


def _cpu(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin
