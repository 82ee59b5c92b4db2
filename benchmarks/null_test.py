"""What is declared where nothing differs, and where something does: simulated studies, known truth.

Run `python benchmarks/null_test.py [studies]`. First, launches of one configuration as six ABBA blocks, each
judged as if A and B were two. Then whole studies: each launches twelve depths once, relaunches its
finalists and declares; two studies of two stacks are then compared. The prior is 2 % where nothing else is
said, whatever the launches really do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from orchestrator.candidates import Candidate, Target, noise_of
from orchestrator.launch_noise import pooled
from orchestrator.peak import Peak, beats, contenders, declare_peak
from orchestrator.shift import PeakShift, judge_shift
from search_spaces.configuration import Configuration

TARGET = Target(name="simulated", metric="decode_tok_s", workloads=("simulated",))
DEPTHS = [Configuration(values={"drafter": "mtp", "k": k} if k else {"drafter": "none"}) for k in range(12)]
FLAT = [0.0] * 12
HILL = [-0.015 * abs(k - 5) for k in range(12)]
MOVED = [-0.015 * abs(k - 9) for k in range(12)]
DELTA, PRIOR, FINALISTS, LAUNCHES = 0.01, 0.02, 3, 3


def measure(
    rng: np.random.Generator, surface: Sequence[float], launch_sd: float, incumbent: Configuration
) -> list[Candidate]:
    """One stack's candidates: log offsets of the surface plus launch noise, finalists launched afresh."""

    def launches(k: int, n: int) -> tuple[float, ...]:
        return tuple((100 * np.exp(surface[k] + rng.normal(0, launch_sd, n))).tolist())

    field = [Candidate(configuration=one, searched=launches(one.k, 1)) for one in DEPTHS]
    again = {one.k for one in contenders([(TARGET, field)], DELTA, FINALISTS, incumbent)}
    return [
        c.model_copy(update={"fresh": launches(c.configuration.k, LAUNCHES)}) if c.configuration.k in again else c
        for c in field
    ]


def declare(field: Sequence[Candidate]) -> Peak:
    """The peak of one stack whose incumbent does not draft."""
    peak = declare_peak(field, TARGET, noise_of(field, PRIOR), DELTA, incumbent=DEPTHS[0])
    assert peak is not None
    return peak


def compare(rng: np.random.Generator, old: Sequence[float], new: Sequence[float], launch_sd: float) -> PeakShift:
    """Two stacks searched one after the other, the old peak being the new one's incumbent."""
    before = measure(rng, old, launch_sd, DEPTHS[0])
    peak = declare(before).configuration
    after = measure(rng, new, launch_sd, peak)
    return judge_shift(before, after, peak, TARGET, noise_of([*before, *after], PRIOR), DELTA)


def winners(surface: Sequence[float], launch_sd: float, studies: int) -> float:
    """Share of studies that declare a winner over the incumbent."""
    rng = np.random.default_rng(1)
    peaks = [declare(measure(rng, surface, launch_sd, DEPTHS[0])) for _ in range(studies)]
    return sum(peak.verdict == "beats the incumbent" for peak in peaks) / studies


def verdicts(old: Sequence[float], new: Sequence[float], launch_sd: float, studies: int) -> dict[str, float]:
    """Share of each verdict between two stacks."""
    rng = np.random.default_rng(2)
    found = [compare(rng, old, new, launch_sd).verdict for _ in range(studies)]
    return {word: found.count(word) / studies for word in sorted(set(found))}


def blocks(launch_sd: float, prior: float, seeds: int, *, known: bool = True) -> tuple[float, float]:
    """24 launches of one configuration: share of blocks that differ, and of seeds with more than one that does.

    `known`: launch noise is pooled over all 24, as a machine's is; else each block has only itself and the prior.
    """
    rng, differ = np.random.default_rng(3), []
    for _ in range(seeds):
        launches = 100 * np.exp(rng.normal(0, launch_sd, (6, 4)))
        machine = pooled(prior, [launches.ravel().tolist()])
        found = 0
        for block in launches.tolist():
            a, b = [block[0], block[3]], block[1:3]
            noise = machine if known else pooled(prior, [a, b])
            found += beats(a, b, noise, DELTA).verdict in ("better", "worse")
        differ.append(found)
    return sum(differ) / 6 / seeds, sum(found > 1 for found in differ) / seeds


def main(studies: int = 400) -> None:
    print("| launch sd | prior | noise known of | a block differs | more than one of six |\n|---|---|---|---|---|")
    for launch_sd in (0.01, 0.02, 0.05):
        for prior in dict.fromkeys([launch_sd, PRIOR]):
            for known in (True, False):
                one, more = blocks(launch_sd, prior, 1000, known=known)
                of = "24 launches" if known else "the block"
                print(f"| {launch_sd:.0%} | {prior:.0%} | {of} | {one:.3f} | {more:.3f} |", flush=True)
    print()
    print("| launch sd | surface | a winner is declared |\n|---|---|---|")
    one_better = [0.0] * 11 + [0.05]
    for launch_sd in (0.01, 0.02, 0.03, 0.05):
        print(f"| {launch_sd:.1%} | all equal | {winners(FLAT, launch_sd, studies):.3f} |", flush=True)
        print(f"| {launch_sd:.1%} | one of 12 is 5 % better | {winners(one_better, launch_sd, studies):.3f} |")
    print("\n| launch sd | old to new | verdicts |\n|---|---|---|")
    pairs = {
        "equal, flat": (FLAT, FLAT),
        "equal, a hill": (HILL, HILL),
        "43 % faster": (HILL, [x + 0.36 for x in HILL]),
        "peak at k = 5, then 9": (HILL, MOVED),
    }
    for launch_sd in (0.01, 0.02, 0.05):
        for name, (old, new) in pairs.items():
            shares = verdicts(old, new, launch_sd, studies)
            text = ", ".join(f"{word} {share:.3f}" for word, share in shares.items())
            print(f"| {launch_sd:.1%} | {name} | {text} |", flush=True)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:2]))
