"""How far decode tok/s at each k is from what no drafting and the launches at the lowest and highest k predict.

Run `python benchmarks/k_curve_error.py JOURNAL [...]`, each the directory of a journal or its file, gzipped. The two k
that were fitted are in brackets and not in the mean absolute error (mae).
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from orchestrator.k_probe import METRIC, curve_through
from trackers.journal import Journal
from trackers.records import TrialRecord


def drafters(source: Path) -> Iterator[list[TrialRecord]]:
    """Measured trials of each engine: those without drafting, and those of one drafter at any k."""
    with TemporaryDirectory() as made:
        if source.is_file():
            (Path(made) / "journal.jsonl").write_bytes(gzip.decompress(source.read_bytes()))
        with Journal(Path(made) if source.is_file() else source, read_only=True) as journal:
            for study in journal.studies():
                found: dict[str, list[TrialRecord]] = {"": []}
                for one in journal.records(study):
                    drafter = str({name: value for name, value in one.configuration.values.items() if name != "k"})
                    if one.state in ("measured", "unsettled"):
                        found.setdefault(drafter if one.configuration.k else "", []).append(one)
                yield from ([*found[""], *each] for drafter, each in found.items() if drafter)


def rows(records: Sequence[TrialRecord], workload: str) -> Iterator[str]:
    """One for each k, and the mean; nothing where fewer than three k were launched."""
    windows = [(one.configuration.k, each) for one in records for each in one.windows if each.workload.name == workload]
    ks = sorted({k for k, _ in windows if k})
    if len(ks) < 3:
        return
    ends, measured = (0, ks[0], ks[-1]), {k: mean(w.metrics[METRIC] for at, w in windows if at == k) for k in ks}
    curve = curve_through({k: one for one in reversed(records) if (k := one.configuration.k) in ends}, workload)
    name = f"| {records[0].fingerprint.engine} | {workload} | {records[-1].configuration.values['drafter']}"
    if curve.refused:
        yield f"{name} | {', '.join(map(str, ks))} | | | no curve: {curve.refused} |"
        return
    promised = {each.k: each.decode_tok_s for each in curve.predictions}
    error = {k: 100 * (promised[k] / measured[k] - 1) for k in ks}
    for k in ks:
        text = f"({error[k]:+.1f})" if k in ends else f"{error[k]:+.1f}"
        yield f"{name} | {k} | {promised[k]:.1f} | {measured[k]:.1f} | {text} |"
    yield f"{name} | mae | | | {mean(abs(error[k]) for k in ks[1:-1]):.1f} |"


print("| engine | workload | drafter | k | predicted tok/s | measured tok/s | error % |\n" + "|---" * 7 + "|")
for of_one in (each for source in sys.argv[1:] for each in drafters(Path(source))):
    for name in sorted({each.workload.name for one in of_one for each in one.windows}):
        sys.stdout.writelines(f"{row}\n" for row in rows(of_one, name))
