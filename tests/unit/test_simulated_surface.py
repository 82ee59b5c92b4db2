"""The simulated surface says what the field reported, and the same for one configuration as for a grid."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import asdict, replace

import numpy as np
import pytest

from orchestrator.failure_causes import CAUSES
from orchestrator.simulated_moves import AXES, GH200, MOVES, SPARK, choices, make_surface, peak, regret
from orchestrator.simulated_spec import (
    Noise,
    Simulation,
    launch_effect,
    read_simulation,
    window_effect,
    write_simulation,
)
from orchestrator.simulated_surface import Drafter, Surface, Traffic, surface_from

ONE = Traffic()
BUSY = Traffic(streams=8, input_tokens=2048, output_tokens=256)


def mtp(k: int, **more: object) -> dict[str, object]:
    return {"drafter": "mtp", "k": k, "enable_prefix_caching": False, **more}


@pytest.mark.parametrize(("k", "tok_s"), [(2, 160.0), (4, 175.0)])
def test_decodes_as_fast_as_the_gh200_did(k: int, tok_s: float) -> None:
    assert GH200.decode_tok_s(mtp(k), ONE) == pytest.approx(tok_s, rel=0.005)


def test_drafts_past_the_peak_cost_more_than_they_bring() -> None:
    assert GH200.decode_tok_s(mtp(6), ONE) < GH200.decode_tok_s(mtp(4), ONE)


def test_prefix_caching_costs_the_gh200_six_percent_of_decode() -> None:
    ratio = GH200.decode_tok_s(mtp(2, enable_prefix_caching=True), ONE) / GH200.decode_tok_s(mtp(2), ONE)
    assert ratio == pytest.approx(151.0 / 160.0, abs=0.005)


@pytest.mark.parametrize(
    ("drafter", "k", "workload", "tok_s"), [("mtp", 15, "generate", 13.4), ("mtp", 15, "edit", 39.0)]
)
def test_decodes_as_fast_as_the_spark_did(drafter: str, k: int, workload: str, tok_s: float) -> None:
    values = {"drafter": drafter, "k": k}
    assert SPARK.decode_tok_s(values, Traffic(name=workload)) == pytest.approx(tok_s, rel=0.03)


def test_the_cheaper_drafter_wins_on_the_spark_though_it_accepts_less() -> None:
    block, deep = {"drafter": "dspark", "k": 7}, {"drafter": "mtp", "k": 8}
    edit = Traffic(name="edit")
    assert SPARK.acceptance_length(block, "edit") < SPARK.acceptance_length(deep, "edit")
    assert SPARK.decode_tok_s(block, edit) / SPARK.decode_tok_s(deep, edit) == pytest.approx(1.46, abs=0.05)


def test_positions_are_accepted_less_and_less_often() -> None:
    chances = GH200.drafters["mtp"].positions(15, "generate")
    assert chances == sorted(chances, reverse=True)


def test_a_block_drafter_accepts_next_to_nothing_beyond_its_block() -> None:
    drafter = SPARK.drafters["dspark"]
    assert drafter.positions(8, "edit")[0] == pytest.approx(0.04)
    assert drafter.positions(7, "edit")[0] > 0.9


def test_prefill_is_untouched_by_k_and_by_memory() -> None:
    speeds = {GH200.prefill_tok_s(mtp(k, gpu_memory_utilization=util)) for k in (1, 8) for util in (0.8, 0.9)}
    assert len(speeds) == 1


CAUSED = {
    "unsupported_drafter": {"drafter": "eagle3", "k": 2},
    "batch_below_seqs": {"max_num_batched_tokens": 64, "max_num_seqs": 128},
    "draft_slots_over_budget": {
        "drafter": "dspark",
        "k": 7,
        "max_num_batched_tokens": 1024,
        "max_num_seqs": 256,
    },
    "out_of_memory_activation": {"max_num_batched_tokens": 1 << 18},
    "out_of_memory_kv": {"gpu_memory_utilization": 0.2},
    "kv_below_max_model_len": {"gpu_memory_utilization": 0.4},
    "out_of_memory_graphs": {"gpu_memory_utilization": 0.99},
}


@pytest.mark.parametrize("cause", CAUSED)
def test_each_cause_of_a_failed_start_can_be_staged(cause: str) -> None:
    surface = replace(GH200, drafters={**GH200.drafters, "dspark": SPARK.drafters["dspark"]})
    assert surface.failure(CAUSED[cause]) == cause
    assert cause in CAUSES


def test_weights_beyond_the_device_are_their_own_cause() -> None:
    assert replace(GH200, weights_gib=120.0).failure({}) == "out_of_memory_weights"


@pytest.mark.parametrize(
    ("version", "failing"), [("0.19.1", False), ("0.27.1", True), ("0.28.0", False), ("0.33.0", False)]
)
def test_draft_slots_follow_the_rule_of_the_version(version: str, failing: bool) -> None:
    surface = replace(GH200, version=version, drafters={"dspark": SPARK.drafters["dspark"]})
    assert (surface.failure(CAUSED["draft_slots_over_budget"]) is not None) is failing


def test_prefix_caching_by_default_came_to_hybrids_with_0_28() -> None:
    on = {
        version: replace(GH200, version=version).value({}, "enable_prefix_caching") for version in ("0.27.1", "0.28.0")
    }
    assert on == {"0.27.1": False, "0.28.0": True}
    assert replace(GH200, state_groups=0).value({}, "enable_prefix_caching") is True


def test_a_grid_gives_what_each_of_its_configurations_gives() -> None:
    surface, _ = make_surface("kv_pool", 3)
    names = list(AXES)
    for values, scores, fits in choices(surface, BUSY, depths={"none": (0,), "dspark": (3, 12)}):
        fixed = {name: value for name, value in values.items() if name not in names}
        for at, row in list(enumerate(itertools.product(*AXES.values())))[::7]:
            one = {**fixed, **dict(zip(names, row, strict=True))}
            assert fits[at] == (surface.failure(one) is None)
            if fits[at]:
                assert scores[at] == pytest.approx(surface.score(one, BUSY), rel=1e-12)


def test_a_small_pool_lets_fewer_requests_run() -> None:
    small = replace(GH200, weights_gib=75.0, kv_bytes_per_token=131072, max_model_len=8192)
    values = {"max_num_batched_tokens": 2048, "max_num_seqs": 16, "gpu_memory_utilization": 0.85}
    long = Traffic(streams=16, input_tokens=4000, output_tokens=600)
    assert small.failure(values) is None
    assert 0 < small.running(values, long) < GH200.running(values, long) == 16


def test_fp8_kv_doubles_the_blocks() -> None:
    assert GH200.blocks({"kv_cache_dtype": "fp8"}) == pytest.approx(2 * GH200.blocks({}), abs=1)


def test_effects_pairs_and_steps_change_decode_by_their_factors() -> None:
    plain = Surface()
    moved = replace(
        plain,
        effects={"attention_backend": {"FLASHINFER": 1.1}},
        pairs=(("k", 3, "enable_prefix_caching", True, 0.5),),
        steps=((4, 0.25),),
    )
    assert moved.passes_s({"attention_backend": "FLASHINFER"}) == pytest.approx(1.1 * plain.passes_s({}))
    assert moved.passes_s({}, 5) == pytest.approx(0.75 * plain.passes_s({}, 5))
    cheap = {"mtp": Drafter(cost=0.1)}
    plain, moved = replace(plain, drafters=cheap), replace(moved, drafters=cheap)
    for k, factor in ((2, 1.0), (3, 0.5)):
        values = {"drafter": "mtp", "k": k, "enable_prefix_caching": True}
        assert moved.passes_s(values) == pytest.approx(factor * plain.passes_s(values))


def test_a_surface_survives_its_file(tmp_path) -> None:
    for name in MOVES:
        surface = make_surface(name, 1)[1]
        assert surface_from(json.loads(json.dumps(asdict(surface)))) == surface
    simulation = Simulation(
        surface=surface, noise=Noise(launch_sd=0.02), lies=("clock_off",), faults={"when": {"k": 2}}
    )
    write_simulation(simulation, tmp_path / "s.json")
    assert read_simulation(tmp_path / "s.json") == simulation


@pytest.mark.parametrize("sd", [0.01, 0.03])
def test_launches_and_windows_vary_by_their_own_sd(sd: float) -> None:
    noise = Noise(launch_sd=sd, window_sd=sd / 4)
    launches = [np.log(launch_effect(noise, 7, launch)) for launch in range(2000)]
    windows = [np.log(window_effect(noise, 7, 0, window)) for window in range(2000)]
    assert statistics.stdev(launches) == pytest.approx(sd, rel=0.06)
    assert statistics.stdev(windows) == pytest.approx(sd / 4, rel=0.06)
    assert launch_effect(noise, 7, 3) == launch_effect(noise, 7, 3) != launch_effect(noise, 8, 3)


def test_prefill_has_a_launch_effect_of_its_own() -> None:
    noise = Noise(launch_sd=0.03, prefill_launch_sd=0.005)
    pairs = [(launch_effect(noise, 1, n), launch_effect(noise, 1, n, "prefill")) for n in range(500)]
    assert abs(np.corrcoef(np.log(pairs).T)[0, 1]) < 0.15


def test_drift_warm_up_and_two_modes_are_seen_in_the_windows() -> None:
    drifting = [window_effect(Noise(drift=0.01), 0, 0, n) for n in range(10)]
    assert drifting[9] / drifting[0] == pytest.approx(0.99**9)
    warming = [window_effect(Noise(warmup=0.12), 0, 0, n) for n in range(12)]
    assert warming[0] == pytest.approx(0.88)
    assert warming[11] > 0.999
    modes = {window_effect(Noise(bimodal=0.3, bimodal_windows=8), 0, 0, n) for n in range(32)}
    assert modes == {1.0, 0.7}


def test_three_launches_in_a_hundred_are_outliers() -> None:
    slow = [effect for n in range(3000) if (effect := launch_effect(Noise(outliers=0.03), 5, n)) < 1]
    assert 0.02 < len(slow) / 3000 < 0.04
    assert 0.85 <= min(slow) <= max(slow) <= 0.95


@pytest.mark.parametrize("move", MOVES)
def test_a_move_is_the_same_for_a_seed_and_leaves_something_to_find(move: str) -> None:
    assert make_surface(move, 4) == make_surface(move, 4) != make_surface(move, 5)
    old, new = make_surface(move, 4)
    for surface in (old, new):
        best, score = peak(surface, BUSY)
        assert surface.failure(best) is None
        assert regret(surface, BUSY, best, score) == pytest.approx(0)


@pytest.mark.parametrize(
    ("move", "least"),
    [
        ("k_shift", 0.05),
        ("drafter_flip", 0.05),
        ("drafter_new", 0.05),
        ("mtp_regress", 0.05),
        ("act_cliff", 0.5),
    ],
)
def test_the_old_peak_loses_where_the_engine_moved(move: str, least: float) -> None:
    losses = []
    for seed in range(5):
        old, new = make_surface(move, seed)
        losses.append(regret(new, BUSY, peak(old, BUSY)[0], peak(new, BUSY)[1]))
    assert statistics.mean(losses) > least


@pytest.mark.parametrize("move", ["null", "drift", "uniform"])
def test_the_old_peak_stays_where_only_the_level_moved(move: str) -> None:
    old, new = make_surface(move, 2)
    assert regret(new, BUSY, peak(old, BUSY)[0], peak(new, BUSY)[1]) < 0.01


def test_some_choices_cannot_start_and_few_are_near_the_peak() -> None:
    surface, _ = make_surface("null", 0)
    found = list(choices(surface, BUSY))
    best = max(float(scores.max()) for _, scores, _ in found)
    fitting = np.mean([fits.mean() for _, _, fits in found])
    near = np.mean([(scores >= 0.99 * best).mean() for _, scores, _ in found])
    assert 0.5 < fitting < 0.95
    assert 0 < near < 0.02
