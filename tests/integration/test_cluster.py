"""Real raylets whose GPUs are none, and simulated engines: placement, two at once, workers and nodes killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from orchestrator.clock import SystemClock
from orchestrator.engine_actor import RaySlots
from orchestrator.errors import ClusterError
from orchestrator.janitor import Running, read
from orchestrator.plan import Slots, TuningPlan
from orchestrator.process_tree import cookie_holders, environment
from orchestrator.session import Result, journal_directory, tune_plan
from trackers.journal import Journal
from trackers.records import TrialRecord

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def plan(**slots: Any) -> TuningPlan:
    return TuningPlan.model_validate(
        {
            "name": "cluster",
            "model": {"id": "org/model"},
            "engines": [{"name": side, "simulated": f"null/0/{side}"} for side in ("old", "new")],
            "workloads": [{"name": "edit", "kind": "edit", "prompt_tokens": 64, "output_tokens": 32}],
            "space": {"max_num_seqs": [2, 4]},
            "precision": {"relative": "30%", "min_windows": 3, "max_windows": 3, "launch_noise": "5%"},
            "finalists": {"count": 1, "launches": 1},
            "slots": slots,
        }
    )


def started(start: Callable[[], Any]) -> Any:
    """Ray gives a raylet 30 seconds, which a busy machine does not always: once more, and again."""
    for _ in range(2):
        with suppress(Exception):
            return start()
    return start()


class Ray:
    """A cluster of a head without GPUs and, on demand, nodes with two each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - settings are read when Ray is imported

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
        self.address: str = self.cluster.address

    def node(self, gpus: int = 2, **labels: str) -> Any:
        return started(lambda: self.cluster.add_node(num_cpus=1, num_gpus=gpus, labels=labels))


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("0" * 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("REPEAK_HOME", str(tmp_path_factory.mktemp("home")))
        ray = started(Ray)
        yield ray
        ray.cluster.shutdown()


@pytest.fixture
def home(ray: Ray, tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of the driver; workers have the one that their raylets were started with."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    return Path(os.environ["REPEAK_HOME"])


class Watch:
    """Looks at everything that carries a cookie of ours, while a study runs."""

    def __init__(self, home: Path) -> None:
        self.home, self.seen = home, dict[str, dict[str, str]]()
        self._stop = threading.Event()
        self.act: Callable[[list[Running]], bool] | None = None
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            running = [one for path in (self.home / "running").glob("*.json") if (one := read(path))]
            for one in running:
                if one.engine and not one.cookie.startswith("preflight"):
                    pairs = [word.decode().partition("=") for word in environment(one.engine.pid)]
                    self.seen.setdefault(one.cookie, {name: value for name, _, value in pairs})
            if self.act and self.act(running):
                self.act = None


def gone(watch: Watch) -> bool:
    clock, waiter = SystemClock(), threading.Event()
    until = clock.monotonic() + 30
    while any(cookie_holders(cookie) for cookie in watch.seen) and clock.monotonic() < until:
        waiter.wait(0.2)
    return not any(cookie_holders(cookie) for cookie in watch.seen)


def records(result: Result) -> list[TrialRecord]:
    with Journal(journal_directory(result.plan)) as journal:
        return [one for study in result.studies for one in journal.records(study.key)]


def counted_once(found: list[TrialRecord]) -> None:
    windows = Counter((one.trial_id, each.launch, each.window) for one in found for each in one.windows)
    assert set(windows.values()) == {1}
    measured = Counter(
        (one.study, one.configuration) for one in found if one.role == "search" and one.state == "measured"
    )
    assert set(measured.values()) == {1}
    assert len(measured) == 4, "each engine has two configurations"


def one_lost(result: Result, watch: Watch) -> None:
    """Somebody was killed, which cost one trial a retry, and left no engine."""
    assert watch.act is None, "nobody was killed"
    found = records(result)
    counted_once(found)
    assert Counter(one.state for one in found if one.state != "measured") == {"lost": 1}
    assert gone(watch)


def test_what_the_cluster_lacks_is_said_before_anything_is_built(ray: Ray, home: Path) -> None:
    for slots, said in (({"gpus": 9}, "9 GPUs in one slot"), ({"gpus": 1, "gpu_type": "H900"}, "type H900")):
        with pytest.raises(ClusterError, match=said):
            tune_plan(plan(**slots), address=ray.address)
    assert not (home / "simulated").exists()


def nodes_of_workers(slots: RaySlots) -> list[int]:
    """How many of a pool's workers stand on each node, once all are leased."""
    with ExitStack() as leases:
        workers: list[Any] = [leases.enter_context(slots.lease("engine")) for _ in range(slots.count)]
        return sorted(Counter(worker._call("node", within_s=60) for worker in workers).values())


def test_slots_without_gpus_stand_on_as_many_nodes_as_the_plan_says(ray: Ray, home: Path, tmp_path: Path) -> None:
    for _ in range(2):
        ray.node(gpus=0, pool="even")
    wanted = Slots(count=4, nodes=2, labels={"pool": "even"})
    slots = RaySlots(wanted, address=ray.address, directory=tmp_path, say=lambda _: None)
    with ExitStack() as ended:
        ended.callback(slots.close)
        assert nodes_of_workers(slots) == [2, 2]


def test_gpus_that_somebody_else_took_are_not_waited_for(ray: Ray, home: Path, tmp_path: Path) -> None:
    import ray as driver  # noqa: PLC0415 - settings are read when Ray is imported

    for _ in range(2):
        ray.node(gpus=2, pool="shared")
    wanted = Slots(count=2, gpus=1, nodes=2, labels={"pool": "shared"})
    slots = RaySlots(wanted, address=ray.address, directory=tmp_path, say=lambda _: None)
    with ExitStack() as ended:
        ended.callback(slots.close)
        slots.check()
        other = driver.remote(num_gpus=2, num_cpus=0, label_selector={"pool": "shared"})(Counter).remote()
        assert driver.get(other.total.remote(), timeout=60) == 0
        assert nodes_of_workers(slots) == [2]
        driver.kill(other)


def test_two_engines_at_once_share_no_gpu_cache_or_port(ray: Ray, home: Path) -> None:
    ray.node(pool="pair")
    with Watch(home) as watch:
        result = tune_plan(plan(count=2, gpus=1, labels={"pool": "pair"}), address=ray.address)
    found = records(result)
    counted_once(found)
    assert {one.state for one in found} == {"measured"}
    assert {env["CUDA_VISIBLE_DEVICES"] for env in watch.seen.values()} == {"0", "1"}
    assert len({env["VLLM_CACHE_ROOT"] for env in watch.seen.values()}) == 2
    assert gone(watch)


def killed_while_measuring(home: Path, name: str) -> Callable[[list[Running]], bool]:
    """Kills the worker of one engine once both running trials have a window on record."""

    def act(running: list[Running]) -> bool:
        journal = home / "journals" / name / "journal.jsonl"
        text = journal.read_text() if journal.exists() else ""
        measured = [line for line in text.splitlines() if "decode_tok_s" in line]
        trials = {one.cookie: one.cookie.partition("-")[2].rpartition("-")[0] for one in running if one.engine}
        both = [one for one in running if any(trials.get(one.cookie, "-") in line for line in measured)]
        if len(both) < 2:
            return False
        os.kill(both[0].owner.pid, signal.SIGKILL)
        return True

    return act


def test_a_worker_killed_costs_its_trial_one_retry_and_its_neighbour_nothing(ray: Ray, home: Path) -> None:
    wanted = plan(count=2, gpus=1, labels={"pool": "pair"}).model_copy(update={"name": "worker"})
    with Watch(home) as watch:
        watch.act = killed_while_measuring(home, "worker")
        result = tune_plan(wanted, address=ray.address)
    one_lost(result, watch)


def test_a_node_that_dies_costs_its_trial_one_retry_elsewhere(ray: Ray, home: Path) -> None:
    doomed = ray.node(gpus=1, pool="two")
    ray.node(gpus=2, pool="two")
    wanted = plan(count=2, gpus=1, nodes=2, labels={"pool": "two"}).model_copy(update={"name": "node"})

    def act(running: list[Running]) -> bool:
        if len([one for one in running if one.engine]) < 2:
            return False
        ray.cluster.remove_node(doomed, allow_graceful=False)
        return True

    with Watch(home) as watch:
        watch.act = act
        result = tune_plan(wanted, address=ray.address)
    one_lost(result, watch)
