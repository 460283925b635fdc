"""Jobs of many Parquet files: the same rows as one file gives, in bounded memory, resumed after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import world

import gainroute as gr
from gainroute._util.blas import one_thread
from gainroute._util.engines import choose_engine
from gainroute._util.progress import Progress
from gainroute.errors import DataError, PosteriorError, StorageError
from gainroute.io import parquet_job
from gainroute.io.decisions import save_decision
from gainroute.io.parquet_files import InputFiles, is_job
from gainroute.io.parquet_part import GROUP_BLOCKS
from gainroute.io.posteriors import for_router, load_outcomes

M, K = 2, 3
CALIBRATION = world(300, M, K, 0)
ROUTER = gr.ExpectedGainRouter().fit(CALIBRATION.local, CALIBRATION.labels, CALIBRATION.strong)
BLOCK = 2**17 // K


def write(path: Path, rows: int, seed: int = 1, group: int = 20_000, **options: Any) -> Path:
    """A file whose row groups do not end where blocks do, with some parties absent."""
    local = world(rows, M, K, seed).local.astype(np.float32)
    rng = np.random.default_rng(seed)
    columns = {"id": pa.array([f"{seed}-{i}" for i in range(rows)])}
    for i in range(M):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(local[i].reshape(-1)), K).cast(pa.list_(pa.float32()))
        columns[f"posterior_{i}"] = pa.compute.if_else(pa.array(rng.random(rows) < 0.02), None, lists)
    columns |= options
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def whole(router: Any, path: Path, target: Path) -> pa.Table:
    """What `gainroute route` writes for one file."""
    known, _ = for_router(router, load_outcomes(path))
    with one_thread():
        save_decision(router.route(known.local_posteriors, present=known.present), target, known.ids)
    return pq.read_table(target)


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """The same columns, types and rows, to the last bit; a sample that nobody answered has posteriors of NaN."""
    assert found.schema.equals(expected.schema)
    for name in expected.column_names:
        columns = (found[name].combine_chunks(), expected[name].combine_chunks())
        flat = [c.flatten() if pa.types.is_fixed_size_list(c.type) else c for c in columns]
        np.testing.assert_array_equal(*(c.to_numpy(zero_copy_only=False) for c in flat), err_msg=name)


def route(given: Path, out: Path, router: Any = ROUTER, made_by: str = "r", processes: int = 1, **options: Any) -> Any:
    return parquet_job.route_files(
        gr.ArrowRouter(router, **options), made_by, InputFiles.find([given]), out,
        engine=choose_engine("local", processes), progress=Progress(),
    )  # fmt: skip


def written(out: Path) -> dict[str, int]:
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in sorted(out.rglob("*")) if path.is_file()}


# ---- the same result ----------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2])
def test_each_file_becomes_what_it_becomes_alone(tmp_path: Path, processes: int) -> None:
    rows = {"a.parquet": 100_000, "deep/b.parquet": 30_000, "deep/empty.parquet": 0}
    for seed, (name, count) in enumerate(rows.items()):
        write(tmp_path / "in" / name, count, seed)
    (tmp_path / "in" / "_temporary").mkdir()
    (tmp_path / "in" / "_temporary" / "x.parquet").write_bytes(b"half of a file")
    routed = route(tmp_path / "in", tmp_path / "out", processes=processes)
    assert list(written(tmp_path / "out")) == list(rows)
    one = {n: whole(ROUTER, tmp_path / "in" / n, tmp_path / "one.parquet") for n, count in rows.items() if count}
    for name, expected in one.items():
        assert_same(pq.read_table(tmp_path / "out" / name), expected)
    assert pq.read_schema(tmp_path / "out/deep/empty.parquet").equals(expected.schema)
    assert (routed.samples, routed.files, routed.kept) == (130_000, 3, 0)
    assert routed.escalated == sum(sum(table["escalate"].to_pylist()) for table in one.values())
    assert routed.incomplete == sum(sum(table["incomplete"].to_pylist()) for table in one.values())


def test_a_large_file_is_cut_where_blocks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_job, "PART_ROWS", 50_000)
    path = write(tmp_path / "in/a.parquet", 200_000)
    routed = route(tmp_path / "in/*.parquet", tmp_path / "out", processes=2)
    names = list(written(tmp_path / "out"))
    assert names == [f"a-{i:05d}-of-00003.parquet" for i in range(3)]
    parts = [pq.read_table(tmp_path / "out" / name) for name in names]
    assert [len(part) % BLOCK for part in parts[:-1]] == [0, 0]
    joined = pa.concat_tables(part.replace_schema_metadata() for part in parts)
    assert_same(joined, whole(ROUTER, path, tmp_path / "one.parquet"))
    assert (routed.samples, routed.files) == (200_000, 3)


def test_ties_take_turns_through_a_file_as_in_one_call(tmp_path: Path) -> None:
    votes = np.eye(K)[CALIBRATION.local.argmax(axis=2)]
    router = gr.ConfidenceRouter(0.5).fit(votes, CALIBRATION.labels, CALIBRATION.labels)
    assert 0 < router.tied_share_ < 1
    path = write(tmp_path / "in/a.parquet", 100_000)
    new = np.eye(K, dtype=np.float32)[world(100_000, M, K, 5).local.argmax(axis=2)]
    lists = {f"posterior_{i}": pa.FixedSizeListArray.from_arrays(pa.array(new[i].reshape(-1)), K) for i in range(M)}
    pq.write_table(pa.table({"id": range(100_000), **lists}), path, row_group_size=20_000)
    route(tmp_path / "in", tmp_path / "out", router)
    assert_same(pq.read_table(tmp_path / "out/a.parquet"), whole(router, path, tmp_path / "one.parquet"))


def test_rows_are_the_ids_of_a_file_without_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "in/a.parquet", 60_000)
    pq.write_table(pq.read_table(path).drop_columns("id"), path)
    route(tmp_path / "in", tmp_path / "out", columns=["score"])
    table = pq.read_table(tmp_path / "out/a.parquet")
    assert table.column_names == ["id", "escalate", "score", "incomplete"]
    assert table["id"].to_pylist() == list(range(60_000))


# ---- bounded memory -----------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        folder = tmp_path / str(rows)
        write(folder / "in/a.parquet", rows, group=5_000)
        before = pa.default_memory_pool()
        pool = pa.proxy_memory_pool(before)
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            route(folder / "in", folder / "out")
            return int(tracemalloc.get_traced_memory()[1] + pool.max_memory())
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(before)

    small, large = peak(GROUP_BLOCKS * BLOCK), peak(2 * GROUP_BLOCKS * BLOCK)
    assert large < 1.2 * small


# ---- resuming -----------------------------------------------------------------------------------


def test_what_is_complete_is_kept_until_router_input_or_options_change(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / f"in/{seed}.parquet", 1000, seed)
    out = tmp_path / "out"
    first = route(tmp_path / "in", out)
    before = written(out)
    (out / "1.parquet").unlink()
    (out / ".1.parquet.4711.part").write_bytes(b"of a process that was killed")
    again = route(tmp_path / "in", out)
    assert (again.kept, again.samples, again.escalated) == (2, 3000, first.escalated)
    after = written(out)
    assert [name for name in before if before[name] != after[name]] == ["1.parquet"]
    assert set(after) == set(before)

    write(tmp_path / "in/2.parquet", 1000, seed=9)  # the same name and number of rows
    assert route(tmp_path / "in", out).kept == 2
    assert pq.read_table(out / "2.parquet")["id"][0].as_py() == "9-0"
    assert route(tmp_path / "in", out, made_by="another router").kept == 0
    assert route(tmp_path / "in", out, made_by="another router").kept == 3
    assert route(tmp_path / "in", out, made_by="another router", columns=["score"]).kept == 0


def test_a_killed_job_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A process is killed when two of four files are complete, and a third is half written."""
    for seed in range(4):
        write(tmp_path / f"in/{seed}.parquet", 1000, seed)
    gr.save(ROUTER, tmp_path / "router.safetensors")
    code = """
import os, sys
from pathlib import Path
from gainroute._util import files
import gainroute.io.parquet_part as part
from gainroute.cli import app
from contextlib import contextmanager
real, opened = part.replacing, []
@contextmanager
def replacing(path):
    opened.append(path)
    with real(path) as out:
        if len(opened) == 3:
            out.write(b"half")
            out.flush()
            print("writing", flush=True)
            sys.stdin.read()
        yield out
part.replacing = replacing
app(sys.argv[1:])
"""
    args = ["route", "router.safetensors", "in", "--out", "out", "--processes", "1"]
    command = [sys.executable, "-c", code, *args]
    job = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert job.stdin is not None
    assert job.stdout is not None
    assert job.stdout.readline() == "writing\n"
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    job.stdin.close()
    job.stdout.close()
    left = written(tmp_path / "out")
    assert sorted(left) == [f".2.parquet.{job.pid}.part", "0.parquet", "1.parquet"]
    done = subprocess.run(
        [sys.executable, "-m", "gainroute", *args], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "(2 of 4 files were complete before)" in done.stdout
    after = written(tmp_path / "out")
    assert sorted(after) == [f"{i}.parquet" for i in range(4)]
    assert all(left[name] == after[name] for name in ("0.parquet", "1.parquet"))
    for i in range(4):
        expected = whole(ROUTER, tmp_path / f"in/{i}.parquet", tmp_path / "one.parquet")
        assert_same(pq.read_table(tmp_path / f"out/{i}.parquet"), expected)


def test_two_jobs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "in/0.parquet", 1000)
    (tmp_path / "out").mkdir()
    with parquet_job._locked(tmp_path / "out"), pytest.raises(StorageError, match="another job writes to the folder"):
        route(tmp_path / "in", tmp_path / "out")


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_row_is_named_and_nothing_is_half_written(tmp_path: Path, processes: int) -> None:
    for seed in range(3):
        write(tmp_path / f"in/{seed}.parquet", 60_000, seed)
    table = pq.read_table(tmp_path / "in/2.parquet")
    rows = table["posterior_1"].to_pylist()
    rows[50_123] = [0.5, 0.5, 0.5]
    bad = table.set_column(2, "posterior_1", pa.array(rows, pa.list_(pa.float32())))
    pq.write_table(bad, tmp_path / "in/2.parquet")
    said = r"in/2\.parquet: local_posteriors: party 1, row 50123 sums to 1\.5; .* output files are complete and kept"
    with pytest.raises(PosteriorError, match=said):
        route(tmp_path / "in", tmp_path / "out", processes=processes)
    assert set(written(tmp_path / "out")) <= {"0.parquet", "1.parquet"}
    pq.write_table(table, tmp_path / "in/2.parquet")
    assert route(tmp_path / "in", tmp_path / "out").samples == 180_000


def test_files_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    good = write(tmp_path / "in/0.parquet", 100)
    odd, table = tmp_path / "in/1.parquet", pq.read_table(good)

    def said(**expected: str) -> None:
        with pytest.raises(DataError, match=expected["match"]):
            route(tmp_path / "in", tmp_path / "out")
        assert written(tmp_path / "out") == {}

    pq.write_table(table.select(["id", "posterior_1", "posterior_0"]), odd)
    said(match=r"1\.parquet has the parties 1, 0, and .*0\.parquet 0, 1; all files need the same columns")
    pq.write_table(table.select(["id"]), odd)
    said(match=r"1\.parquet has no column posterior_<party>; it has id")
    odd.write_bytes(good.read_bytes()[:500])
    said(match=r"1\.parquet is not a Parquet file, or truncated")
    np.savez(tmp_path / "in/x.npz", local_posteriors=CALIBRATION.local)
    (tmp_path / "in/x.npz").rename(odd)
    said(match=r"1\.parquet is an \.npz file; a job of many files takes Parquet files")


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in/0.parquet", 100)
    with pytest.raises(DataError, match="lies in that of the input"):
        route(tmp_path / "in", tmp_path / "in/out")
    with pytest.raises(DataError, match="lies in the folder of the output"):
        route(tmp_path / "in/*.parquet", tmp_path / "in")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none holds no \.parquet file"):
        route(tmp_path / "none", tmp_path / "out")
    with pytest.raises(DataError, match=r"no file matches .*x\*\.parquet"):
        route(tmp_path / "in/x*.parquet", tmp_path / "out")
    (tmp_path / "out").mkdir()
    pq.write_table(pa.table({"own": [1]}), tmp_path / "out/0.parquet")
    with pytest.raises(StorageError, match=r"0\.parquet exists and was not written by this command"):
        route(tmp_path / "in", tmp_path / "out")
    (tmp_path / "out/0.parquet").rename(tmp_path / "out/9.parquet")
    with pytest.warns(gr.GainrouteWarning, match=r"holds 1 Parquet file\(s\) that this job does not write"):
        route(tmp_path / "in", tmp_path / "out")


def test_files_keep_their_place_below_the_folder_they_share(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}/x.parquet", 10) for name in ("a", "b/c")]
    found = InputFiles.find([paths[0], tmp_path / "a/../b/c/x.parquet"])
    assert [str(found.relative(path)) for path in found.files] == ["a/x.parquet", "b/c/x.parquet"]
    found = InputFiles.find([tmp_path / "b/**/*.parquet"])
    assert [str(found.relative(path)) for path in found.files] == ["c/x.parquet"]
    assert is_job([tmp_path / "b"], tmp_path / "d.npz")
    assert is_job([paths[0]], tmp_path / "b")
    assert not is_job([paths[0]], tmp_path / "d.npz")
