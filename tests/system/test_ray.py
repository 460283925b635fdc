"""The engine ray, on a cluster of three nodes of one core each, all on the loopback interface of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import world
from typer.testing import CliRunner

import gainroute as gr
from gainroute._util.engines import choose_engine, connected_ray, in_ray
from gainroute._util.progress import Progress
from gainroute.cli import app
from gainroute.errors import DataError, GainrouteError
from gainroute.experiments.config import load_config
from gainroute.experiments.records import load_record
from gainroute.experiments.runner import run_seeds
from gainroute.training.checkpoint import CheckpointStore
from gainroute.training.data.registry import load_dataset
from gainroute.training.prepare import prepare_dataset
from gainroute.training.ray_parties import starting_parties
from gainroute.training.routes import RouteTrainer
from gainroute.training.settings import default_route_settings

NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_raylet_start_wait_time_s", "300")  # a busy machine needs more than the usual 30
        started = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        started.add_node(**NODE)
        started.add_node(**NODE)
        patch.setenv("RAY_ADDRESS", started.address)
        with connected_ray() as ray:  # one connection for all tests
            yield ray
        started.shutdown()


def test_tasks_run_on_all_nodes_and_their_errors_come_back(cluster: Any) -> None:
    # Functions inside this one are sent as they are; the cluster cannot import the module of a test.
    class Meeting:
        """Answers when three have arrived."""

        def __init__(self) -> None:
            self._count, self._all = 0, asyncio.Event()

        async def arrive(self) -> None:
            self._count += 1
            if self._count == 3:
                self._all.set()
            await self._all.wait()

    def meet(task: int, shared: int, _stopped: Any) -> tuple[int, str]:
        """Return once three tasks run at the same time: each then has the one core of a node."""
        import ray

        ray.get(ray.get_actor("meeting").arrive.remote(), timeout=60)
        return task * shared, ray.get_runtime_context().get_node_id()

    def fail(task: int, _shared: object, _stopped: Any) -> None:
        raise DataError(f"task {task} is bad")

    meeting = cluster.remote(num_cpus=0)(Meeting).options(name="meeting").remote()
    results, nodes = zip(*in_ray(meet, range(3), 5), strict=True)
    cluster.kill(meeting)
    assert sorted(results) == [0, 5, 10]
    assert len(set(nodes)) == 3
    with pytest.raises(DataError, match="task 1 is bad"):
        list(in_ray(fail, [1], None))


def test_a_job_on_the_cluster_writes_the_files_of_a_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = world(seed=0)
    router = gr.ExpectedGainRouter(0.2, threshold="calibration").fit(data.local, data.labels, data.strong)
    gr.save(router, "router.safetensors")
    Path("in").mkdir()
    for i in range(4):
        columns = {f"posterior_p{m}": list(p) for m, p in enumerate(world(seed=i + 1).local)}
        pq.write_table(pa.table(columns), f"in/{i}.parquet")
    for engine in ("ray", "local"):
        done = CliRunner().invoke(app, ["route", "router.safetensors", "in", "--out", engine, "--engine", engine])
        assert done.exit_code == 0, done.output
    for i in range(4):
        assert pq.read_table(f"ray/{i}.parquet").equals(pq.read_table(f"local/{i}.parquet"))


def test_encoders_trained_on_the_cluster_are_those_of_one_process() -> None:
    digits = prepare_dataset(load_dataset("digits"), 0.2, 0).train
    data = replace(digits, views=digits.views[:2], party_names=digits.party_names[:2])
    settings = default_route_settings(len(data.labels), epochs=1)
    found = []
    for engine in ("ray", "local"):
        with starting_parties(engine) as start:
            store = CheckpointStore(None)
            trainer = RouteTrainer(settings, 0, store, Progress(), "cpu", start)
            found.append(trainer.strong(data, "vfl"))
    for one, other in zip(found[0].encoders, found[1].encoders, strict=True):
        for name, tensor in one.state_dict().items():
            assert np.array_equal(tensor.numpy(), other.state_dict()[name].numpy()), name


def test_seeds_trained_on_the_cluster_leave_the_records_of_one_process(tmp_path: Path) -> None:
    digits = load_config("digits")
    config = replace(
        digits,
        name="small",
        threads=1,
        local=replace(digits.local, epochs=1),
        vfl=replace(digits.vfl, epochs=1, width=2, latent=8),
        masked=replace(digits.masked, epochs=1),
        defer=replace(digits.defer, alphas=(1.0,)),
    )
    for engine in ("ray", "local"):
        folders = {"records_dir": tmp_path / engine, "work_dir": tmp_path / f"work-{engine}"}
        paths = sorted(run_seeds(config, [0, 1], choose_engine(engine, 1), **folders))
        assert [path.stem for path in paths] == ["seed0", "seed1"]
    for seed in ("seed0", "seed1"):
        one, other = (load_record(tmp_path / engine / "small" / f"{seed}.npz") for engine in ("ray", "local"))
        assert np.array_equal(one.test.strong_posterior, other.test.strong_posterior)
        assert np.array_equal(one.calibration.local_posteriors, other.calibration.local_posteriors)


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> None:
    monkeypatch.setattr(cluster, "is_initialized", lambda: False)

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(cluster, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.3:1")
    with pytest.raises(GainrouteError, match=r"no Ray cluster answers at '127.0.0.3:1' \(refused\): start one"):
        connected_ray().__enter__()
