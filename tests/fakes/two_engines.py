"""A journal as a tune of two engines leaves it: a truth, noise at both levels, finalists, peaks, the plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from orchestrator.candidates import candidates, noise_of
from orchestrator.kept_plan import keep_plan
from orchestrator.objective import targets
from orchestrator.peak import declare_peak
from orchestrator.plan import TuningPlan
from search_spaces.configuration import Configuration
from trackers.entries import StudyClosed, StudyOpened, TrialStarted
from trackers.journal import Journal
from trackers.records import Estimate, Launch, Measurement, StackFingerprint, TrialRecord

OLD, NEW = "vllm-0.27.1", "vllm-0.32.0"
EPOCH = 1.76e9
Truth = Callable[[str, Configuration], float]


def plan(name: str = "plan", **changes: Any) -> TuningPlan:
    """Two engines, one stream, drafting with ngram at three k, two batch widths."""
    held = {
        "name": name,
        "model": {"id": "org/model"},
        "engines": ["vllm==0.27.1", "vllm==0.32.0"],
        "incumbent": "vllm serve org/model",
        "workloads": [{"name": "generate", "kind": "generate", "prompt_tokens": 64, "output_tokens": 64}],
        "space": {
            "drafter": {"none": {}, "ngram": {"k": [2, 4, 8]}},
            "max_num_seqs": [8, 16],
            "atomic_add": {
                "env": "VLLM_MARLIN_USE_ATOMIC_ADD",
                "choices": [0, 1],
                "default": 0,
                "says": "Atomic.",
            },
        },
        "precision": {"relative": "2%", "min_windows": 3, "max_windows": 5, "launch_noise": "1%"},
    }
    return TuningPlan.model_validate(held | changes)


def configuration(drafter: str = "none", k: int = 0, **others: Any) -> Configuration:
    drafting = {"drafter": drafter, **({"k": k} if k else {})}
    return Configuration(values={**drafting, "max_num_seqs": 8, "atomic_add": 0, **others})


def moved(engine: str, one: Configuration) -> float:
    """Decode tok/s: k = 2 is the old peak, k = 8 the new; a tenth faster without drafting."""
    if one.drafter == "none":
        return 100.0 if engine == OLD else 110.0
    old = {2: 140.0, 4: 125.0, 8: 110.0}
    new = {2: 150.0, 4: 170.0, 8: 200.0}
    return (old if engine == OLD else new)[one.k] * (1.0 if one.values["max_num_seqs"] == 8 else 0.97)


def space() -> list[Configuration]:
    return [configuration()] + [configuration("ngram", k, max_num_seqs=width) for k in (2, 4, 8) for width in (8, 16)]


def stack(engine: str, **items: str) -> StackFingerprint:
    version = engine.removeprefix("vllm-")
    torch = {"0.27.1": "2.11.0", "0.32.0": "2.13.0"}.get(version, "2.13.0")
    held = {"vllm": version, "torch": torch, "model": "org/model", "gpu": "Card", "gpu.count": "1"}
    return StackFingerprint(items=held | items)


def record(
    study: str,
    number: int,
    engine: str,
    one: Configuration,
    speed: float,
    *,
    role: str = "search",
    wanted: TuningPlan | None = None,
    **changes: Any,
) -> TrialRecord:
    """One measured launch; prefill is the same whatever is chosen, as it should be."""
    wanted = wanted or plan()
    rng = random.Random(f"{study}{number}")
    launch = rng.gauss(0, 0.008)
    metrics = {"decode_tok_s": speed, "prefill_tok_s": 6250.0, "median_ttft_ms": 12.0, "passes_s": speed / 2}
    windows = tuple(
        Measurement(
            workload=workload.ref,
            launch=0,
            window=n,
            started_at=EPOCH + 100.0 * number + n,
            duration_s=1.0,
            completed=4,
            failed=0,
            total_input_tokens=256,
            total_output_tokens=256,
            metrics={k: v * (1 + launch + rng.gauss(0, 0.001)) for k, v in metrics.items()},
        )
        for workload in wanted.workloads
        for n in range(4)
    )
    estimates = {}
    for window in windows:
        for name, value in window.metrics.items():
            estimates[f"{window.workload.name}/{name}"] = Estimate(
                value=value, half_width=0.02 * value, launches=1, windows=3, ending="stable"
            )
    flags = ["--max-num-seqs", str(one.values.get("max_num_seqs", 8)), "--no-enable-prefix-caching"]
    if one.drafter != "none":
        flags += ["--speculative-config", f'{{"method": "{one.drafter}", "num_speculative_tokens": {one.k}}}']
    held: dict[str, Any] = {
        "trial_id": f"{study}-{number:04d}",
        "study": study,
        "number": number,
        "role": role,
        "state": "measured",
        "reason": "stable",
        "configuration": one,
        "fingerprint": stack(engine),
        "workloads": tuple(workload.ref for workload in wanted.workloads),
        "launches": (
            Launch(
                launch=0,
                started_at=EPOCH + 100.0 * number,
                ready_s=4.0,
                argv=("/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "org/model", *flags),
            ),
        ),
        "windows": windows,
        "estimates": estimates,
        "started_at": EPOCH + 100.0 * number,
        "duration_s": 30.0,
    }
    return TrialRecord.model_validate(held | changes)


def write(
    home: Path,
    *,
    truth: Truth = moved,
    wanted: TuningPlan | None = None,
    finalists: int = 3,
    anchors: int = 2,
    extra: Iterable[TrialRecord] = (),
) -> Path:
    """The journal's folder. Each engine: the space once, the two best and the incumbent afresh."""
    wanted = wanted or plan()
    folder = home / "journals" / wanted.name
    with Journal(folder) as journal:
        keep_plan(wanted, folder)
        for order, engine in enumerate((OLD, NEW)):
            study = f"{'ab'[order]}{wanted.name[:3]:0<11}"[:12]
            journal.study(
                StudyOpened(
                    study=study,
                    plan=wanted.name,
                    model="org/model",
                    machine="Card",
                    fingerprint=stack(engine),
                    started_at=EPOCH + order,
                    facts={"engine": engine},
                )
            )
            best = sorted(space(), key=lambda one: -truth(engine, one))[:2]
            launches = [("search", one) for one in space()]
            launches += [("finalist", one) for _ in range(finalists) for one in [*best, configuration()]]
            launches += [("anchor", configuration("ngram", 2))] * (anchors if engine == NEW else 0)
            records = [
                record(study, n, engine, one, truth(engine, one), role=role, wanted=wanted)
                for n, (role, one) in enumerate(launches)
            ]
            for one in [*records, *(r for r in extra if r.study == study)]:
                journal.begin(TrialStarted(**{name: getattr(one, name) for name in TrialStarted.model_fields}))
                journal.trial(one)
            close(journal, study, records, wanted)
    return folder


def close(journal: Journal, study: str, records: list[TrialRecord], wanted: TuningPlan) -> None:
    peaks = {}
    for target in targets(wanted.objective, wanted.workload_names):
        field = candidates(records, target, wanted.precision.rule())
        noise = noise_of(field, wanted.precision.launch_noise)
        found = declare_peak(field, target, noise, wanted.precision.zone, incumbent=configuration())
        assert found is not None
        peaks[target.name] = found.model_dump(mode="json")
    journal.peak(StudyClosed(study=study, at=EPOCH + 99_000.0, verdict="done", peak=peaks))
