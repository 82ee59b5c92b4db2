"""Audits each peak of a study from what its trial left behind: no launch, one file, and tags of findings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from search_spaces.configuration import Configuration
from trackers.records import Launch, TrialRecord

from .audit_collect import audit_trial
from .audit_facts import NullCheck
from .engine_log import read_ends
from .errors import RepeakError
from .gates import broken_gates
from .peak import Peak

if TYPE_CHECKING:
    from .study import Study

__all__ = ["PeakAudit", "audit_peaks", "log_of", "trial_of"]

_LOG_BYTES = 4 << 20


class PeakAudit(NamedTuple):
    """What a study's closing holds of it: tags by name, artifacts by path."""

    facts: dict[str, str]
    files: dict[str, str]


def trial_of(configuration: Configuration, records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The last measured trial of a configuration, of its own study's."""
    own = [one for one in records if one.role != "in_turn"]
    found = [one for one in own if one.configuration == configuration and one.state == "measured"]
    return found[-1] if found else None


def log_of(record: TrialRecord) -> str:
    """The log of its last good launch, both ends; empty where it is gone."""
    good: list[Launch] = [launch for launch in record.launches if launch.failure is None and launch.log_path]
    return read_ends(Path(good[-1].log_path), _LOG_BYTES, _LOG_BYTES) if good else ""


def audit_peaks(study: Study, peaks: Mapping[str, Peak], records: Sequence[TrialRecord], directory: Path) -> PeakAudit:
    """Tags `audit.<row>` of what does not agree, `gates.<target>` of gates broken; all rows in `audit.json`."""
    facts: dict[str, str] = {}
    rows: dict[str, list[dict[str, object]]] = {}
    broken = broken_gates(records, study.space.defaults)
    old = trial_of(study.incumbent, records) if study.incumbent else None
    for target, peak in peaks.items():
        if names := broken.get(peak.configuration):
            facts[f"gates.{target}"] = f"breaks {', '.join(names)}"
        record = trial_of(peak.configuration, records)
        if record is None:
            continue
        try:
            found = audit_trial(record, log_of(record), nulls=_nulls(study, old, record))
        except (RepeakError, OSError) as error:
            facts["audit"] = f"not done: {error}"[:500]
            continue
        rows[target] = [row.model_dump(mode="json") for row in found]
        facts |= {f"audit.{row.name.replace(' ', '_')}": row.verdict for row in found if row.finding}
    if not rows:
        return PeakAudit(facts, {})
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{study.key}.json"
    file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return PeakAudit(facts, {"audit.json": str(file)})


def _nulls(study: Study, old: TrialRecord | None, new: TrialRecord) -> list[NullCheck]:
    """Metrics that none of the settings changed since the incumbent may touch, before and after."""
    if old is None or old.configuration == new.configuration:
        return []
    before, after = old.configuration.values, new.configuration.values
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    knobs = [set(knob.nulls) for knob in study.space.knobs if knob.name in changed]
    metrics = set.intersection(*knobs) if knobs and changed <= {k.name for k in study.space.knobs} else set()
    found = []
    for key, one in old.estimates.items():
        other = new.estimates.get(key)
        if other is not None and key.rpartition("/")[2] in metrics:
            noise = math.hypot(one.relative, other.relative) / 1.96
            found.append(NullCheck(metric=key, before=one.value, after=other.value, noise=noise))
    return found
