"""The same run on a Ray cluster, here one of a single machine that the test starts and ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from determinism.near_ties import Limit
from determinism.replay.outcome import Outcome
from determinism.replay.plan import Job
from determinism.replay.ray_workers import ray_lanes
from inference.scripted_engine import ScriptedEngine
from projection.errors import ConfigurationError, EngineError
from tests.determinism.plain_config import PLAIN
from tests.determinism.replay.sealed_log import not_best, scratch_record, seal_many, with_replays
from tests.projection.decided import filled_store, seal

pytestmark = pytest.mark.engine  # a cluster takes some seconds and several processes


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that is there already, as a team's would be."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield str(cluster.address)
    cluster.shutdown()


def test_a_log_is_replayed_on_the_cluster(address: str, tmp_path: Path) -> None:
    store = filled_store()
    record = scratch_record(store)
    seal_many(store, record, 6)
    seal(store, not_best(record))
    with ray_lanes(address, 2, "scripted", PLAIN, 2, Limit()) as lanes:
        assert len(lanes.replays) == 4
        assert lanes.engine_identity == ScriptedEngine().identity.digest
        tally = with_replays(store, tmp_path, lanes.replays, lanes.engine_identity)
    assert (tally.verdicts, tally.exit_code) == ({"PASS": 7, "DRIFT": 1}, 1)


def test_an_engine_that_cannot_be_started_there_is_named(address: str) -> None:
    with (
        pytest.raises(ConfigurationError, match="there is no engine 'other'"),
        ray_lanes(address, 1, "other", PLAIN, 1, Limit()),
    ):
        pass


def test_an_actor_that_dies_ends_the_run_and_keeps_what_was_finished(address: str, tmp_path: Path) -> None:
    import ray

    store = filled_store()
    seal_many(store, scratch_record(store), 5)
    with ray_lanes(address, 1, "scripted", PLAIN, 1, Limit()) as lanes:
        (one,) = lanes.replays
        assert isinstance(one, partial)
        (actor,) = one.args

        def killing(job: Job) -> Outcome:
            if job.place.position == 3:
                ray.kill(actor)
            outcome: Outcome = one(job)
            return outcome

        with pytest.raises(EngineError, match="continue the run"):
            with_replays(store, tmp_path, [killing], lanes.engine_identity)
    (rows,) = tmp_path.glob("segment-*/rows.jsonl")
    assert len(rows.read_text().splitlines()) == 1 + 2  # the header, and two records


def test_a_cluster_that_is_not_there_is_an_engine_error() -> None:
    with (
        pytest.raises(EngineError, match="the cluster failed"),
        ray_lanes("127.0.0.1:1", 1, "scripted", PLAIN, 1, Limit()),
    ):
        pass
