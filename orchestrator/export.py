"""Export: a peak as what people paste: serve line, vLLM's YAML, compose service, systemd unit, k by batch."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

import yaml

from search_spaces.configuration import Configuration
from search_spaces.serve_args import serve_args
from search_spaces.versions import lacks
from trackers.records import Frozen

from .audit_peaks import trial_of
from .candidates import Target, candidates
from .compare import lens_of
from .errors import PlanError
from .library import Shelf
from .peak import Peak, simplicity
from .plan import TuningPlan

__all__ = ["FORMATS", "Serving", "as_line", "export", "k_schedule", "launches_said", "serving"]

FORMATS = ("serve", "yaml", "compose", "systemd", "schedule")
_SCHEDULE_SINCE = "0.24.0"
_KEY = "num_speculative_tokens_per_batch_size"


class Serving(Frozen):
    """One configuration as it was launched: what starts it, the model, its flags, variables, stack."""

    start: tuple[str, ...]
    model: str
    flags: tuple[str, ...]
    env: dict[str, str]
    stack: dict[str, str]
    title: str

    @property
    def line(self) -> tuple[str, ...]:
        return ("vllm", "serve", self.model, *self.flags)

    @property
    def pairs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Flag -> its values, in order."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for word in self.flags:
            if word.startswith("--"):
                name, equals, text = word.partition("=")
                found.append((name, (text,) if equals else ()))
            elif found:
                found[-1] = (found[-1][0], (*found[-1][1], word))
        return found


def serving(shelf: Shelf, peak: Peak, plan: TuningPlan | None) -> Serving:
    """The peak of a study as it was launched, variables from the plan and its knobs.

    Raises:
        PlanError: No measured trial of it is here.
    """
    record = trial_of(peak.configuration, shelf.records)
    if record is None or not record.launches:
        raise PlanError(f"{peak.configuration.label()} was never measured in {shelf.opened.study}.")
    argv = record.launches[-1].argv
    at = next((n for n, word in enumerate(argv) if word == "serve" or word.endswith("api_server")), 0)
    items = shelf.opened.fingerprint.items
    env = {name.removeprefix("env."): v for name, v in items.items() if name.startswith("env.")}
    if plan is not None:
        env |= serve_args(peak.configuration, serve={}, space=plan.space)[1]
    interval = f"{peak.estimate.value:.4g} +- {peak.estimate.half_width:.2g}"
    numbers = f"{peak.target.metric} {interval} on {peak.target.name}, {launches_said(peak.estimate.launches)}"
    return Serving(
        start=argv[: at + 1],
        model=argv[at + 1],
        flags=argv[at + 2 :],
        env=env,
        stack=items,
        title=f"{peak.configuration.label()}: {numbers}; {shelf.opened.fingerprint.engine}, stack "
        f"{shelf.opened.fingerprint.key}",
    )


def launches_said(count: int) -> str:
    return f"{count} launch" if count == 1 else f"{count} launches"


def export(one: Serving, kind: str) -> str:
    """The text in one of `serve`, `yaml`, `compose` and `systemd`; its first line says what was measured."""
    head = "".join(f"# {line}\n" for line in one.title.splitlines())
    return head + {"serve": as_line, "yaml": _yaml, "compose": _compose, "systemd": _systemd}[kind](one)


def as_line(one: Serving) -> str:
    """A shell command, one flag a line."""
    words = [*(f"{name}={shlex.quote(text)}" for name, text in one.env.items()), "vllm serve"]
    # A value that opens with a dash would be read as the next flag.
    flags = [
        shlex.join([f"{name}={values[0]}"] if values and values[0].startswith("-") else [name, *values])
        for name, values in one.pairs
    ]
    return " \\\n  ".join([" ".join([*words, shlex.quote(one.model)]), *flags]) + "\n"


def _yaml(one: Serving) -> str:
    """For `vllm serve --config FILE`; a switch is true under its own name: older versions drop false."""
    flags = {name[2:]: list(v) if len(v) > 1 else v[0] if v else True for name, v in one.pairs}
    typed = {name: _number(v) if isinstance(v, str) else v for name, v in flags.items()}
    notes = "".join(f"# export {name}={shlex.quote(text)}\n" for name, text in one.env.items())
    return notes + yaml.safe_dump({"model": one.model, **typed}, sort_keys=False, width=1000)


def _number(text: str) -> int | float | str:
    """A number where YAML would write it back as the same text."""
    for kind in (int, float):
        try:
            if str(kind(text)) == text:
                return kind(text)
        except ValueError:
            pass
    return text


def _compose(one: Serving) -> str:
    """A service on loopback; a local model is mounted read-only, a GPU is asked for where one was used."""
    local = one.model.startswith("/")
    version = one.stack.get("vllm", "").split("+")[0]
    cpu = "gpu" not in one.stack
    service: dict[str, object] = {
        # The official image has GPUs; for a CPU the project's own Dockerfile builds one.
        "image": f"engine:{version}" if cpu else f"vllm/vllm-openai:v{version}",
        "entrypoint": ["python3", "-m", "vllm.entrypoints.cli.main", "serve"],
        "command": [one.model, *one.flags],
        "environment": dict(one.env),
        "ports": ["127.0.0.1:8000:8000"],
        "ipc": "host",
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD-SHELL", "curl -fs http://127.0.0.1:8000/health"],
            "interval": "30s",
            "timeout": "5s",
            "start_period": "30m",
            "retries": 3,
        },
    }
    if local:
        service["volumes"] = [{"type": "bind", "source": one.model, "target": one.model, "read_only": True}]
    if not cpu:
        count = int(one.stack.get("gpu.count", 1))
        device = {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    else:
        probe = "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"
        service["healthcheck"] |= {"test": ["CMD", "python", "-c", probe]}  # type: ignore[operator]
    # A dollar would be a variable of compose's.
    whole = json.loads(json.dumps({"services": {"vllm": service}}).replace("$", "$$"))
    return yaml.safe_dump(whole, sort_keys=False, width=1000)


def _systemd(one: Serving) -> str:
    """A unit that starts the very environment that was measured."""
    start = [*one.start, one.model, *one.flags, "--host", "127.0.0.1", "--port", "8000"]
    lines = [
        "[Unit]",
        "Description=vLLM, tuned",
        "After=network-online.target",
        "Wants=network-online.target",
    ]
    lines += ["", "[Service]", "Type=exec"]
    lines += [f"Environment={_quoted(f'{name}={text}')}" for name, text in one.env.items()]
    lines += ["ExecStart=" + " ".join(_quoted(word, command=True) for word in start)]
    lines += ["Restart=on-failure", "RestartSec=10", "TimeoutStopSec=60", "", "[Install]"]
    return "\n".join([*lines, "WantedBy=multi-user.target"]) + "\n"


def _quoted(word: str, *, command: bool = False) -> str:
    """A word of a unit file: `%` and, in commands, `$` would be replaced."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    text = text.replace("$", "$$") if command else text
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text) else f'"{text}"'


def k_schedule(shelf: Shelf, peak: Peak, plan: TuningPlan | None) -> Serving:
    """The peak with its k by batch size, from what was measured at each concurrency under its drafter.

    At each the fewest draft tokens within the indifference zone of the best.

    Raises:
        PlanError: The version has no such schedule, or fewer than two concurrencies or k were measured.
    """
    version, one = shelf.opened.fingerprint.items.get("vllm"), serving(shelf, peak, plan)
    why = ""
    if lacks(version, _SCHEDULE_SINCE, None):
        why = f"vLLM {version} has no schedule of k by batch size; it is there from {_SCHEDULE_SINCE}."
    at = {} if why or plan is None else {w.name: w.concurrency or 1 for w in plan.workloads}
    best = {width: k for name, width in at.items() if (k := _best_k(shelf, peak, plan, name)) is not None}
    if not why and (len(set(at.values())) < 2 or len(best) < 2 or not any(best.values())):
        why = "A schedule needs workloads at two concurrencies, each measured at two k of the peak's drafter."
    if why:
        raise PlanError(why, "`repeak export PLAN` gives the peak as one serve line.")
    widths = sorted(best)
    starts = [1, *(width + 1 for width in widths[:-1])]
    rows = [[start, width, best[width]] for start, width in zip(starts, widths, strict=True)]
    flags = list(one.flags)
    place = flags.index("--speculative-config") + 1
    drafting = json.loads(flags[place])
    drafting |= {"num_speculative_tokens": max(best.values()), _KEY: rows}
    flags[place] = json.dumps(drafting)
    return one.model_copy(update={"flags": tuple(flags), "title": f"k by batch size {rows}; {one.title}"})


def _best_k(shelf: Shelf, peak: Peak, plan: TuningPlan | None, workload: str) -> int | None:
    """The best k of one workload, all else as in the peak; None where fewer than two were measured."""
    held = {n: v for n, v in peak.configuration.values.items() if n not in ("k", "drafter")}
    lens = lens_of(plan, peak)
    target = Target(name=workload, metric=peak.target.metric, workloads=(workload,))
    drafter = peak.configuration.drafter
    field = [
        c
        for c in candidates(shelf.records, target, lens.rule)
        if not c.veto and c.configuration.drafter in (drafter, "none") and _others(c.configuration, held)
    ]
    if len({c.configuration.k for c in field}) < 2:
        return None
    top = max(target.score(c.evidence) for c in field)
    near = [c.configuration for c in field if target.score(c.evidence) >= top - lens.delta]
    return min(near, key=lambda one: simplicity(one, {})).k


def _others(configuration: Configuration, held: Mapping[str, object]) -> bool:
    """Whether all but drafting is as held."""
    own = {n: v for n, v in configuration.values.items() if n not in ("k", "drafter")}
    return {n: v for n, v in own.items() if not n.startswith("drafter.")} == {
        n: v for n, v in held.items() if not n.startswith("drafter.")
    }
