"""One configuration, launched again and again on a real engine: does it ever look different from itself?

Run `python benchmarks/null_launches.py PLAN [launches]`: the plan's incumbent on its last engine, 24 times by
default, through the same journal as a study, so that a run that was stopped goes on. Each four launches in a row
are one ABBA comparison, judged as a study judges two configurations, with the noise of all the other launches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from orchestrator.equivalence import equivalent
from orchestrator.launch_noise import logs, mean_log, pooled
from orchestrator.memory import launch_means
from orchestrator.plan import TuningPlan
from orchestrator.plan_file import load_plan
from orchestrator.session import tune_plan
from orchestrator.study import AGAIN, Bench, Study, attempt
from orchestrator.tune import conclude
from search_spaces.configuration import Configuration
from trackers.records import TrialRecord


def launched(plan: TuningPlan, launches: int) -> list[TrialRecord]:
    """Measured trials of one launch each, those of earlier runs first."""
    found: list[TrialRecord] = []

    def work(studies: Sequence[Study], bench: Bench):
        study = studies[-1]
        one = study.incumbent or Configuration(values={"drafter": "none"})
        while True:
            kept = [each for each in bench.memory.of(study.key) if each.role == "reproduce" and each.state not in AGAIN]
            if len(kept) >= launches:
                break
            attempt(study, bench, one, "reproduce")
        found.extend(kept)
        return conclude(studies, plan, bench.memory)

    tune_plan(plan, work=work)
    return found


def main(file: str, launches: int = 24) -> None:
    plan = load_plan(file)
    records = launched(plan, launches)
    metric, rule = plan.objective.metric, plan.precision.rule()
    good = [record for record in records if record.state == "measured"]
    print(f"{len(records)} launches, {len(good)} measured; states: {sorted({one.state for one in records})}")
    print("| workload | launch sd | blocks | differences at 95 % | at the plan's precision |\n|---|---|---|---|---|")
    for workload in plan.workload_names:
        means = [value for record in good for value in launch_means(record, workload, metric, rule)]
        blocks = [means[at : at + 4] for at in range(0, len(means) - 3, 4)]
        different, changed = 0, 0
        for number, block in enumerate(blocks):
            others = [each for other, each in enumerate(blocks) if other != number]
            noise = pooled(plan.precision.launch_noise, others)
            first, second = [block[0], block[3]], [block[1], block[2]]
            gap = abs(mean_log(first) - mean_log(second))
            different += gap > noise.t() * noise.sd
            changed += equivalent(first, second, noise, plan.precision.relative).verdict == "changed"
        sd = float(np.std(logs(means), ddof=1))
        print(f"| {workload} | {sd:.2%} | {len(blocks)} | {different} | {changed} |")


if __name__ == "__main__":
    main(sys.argv[1], *(int(text) for text in sys.argv[2:3]))
