"""Write a first plan, with comments, from the serve line that someone runs today."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from search_spaces.catalog import CATALOG
from search_spaces.configuration import Configuration
from search_spaces.serve_args import serve_args
from search_spaces.space import SearchSpace

from .errors import PlanError
from .serve_line import ServeLine, incumbent_configuration, parse_serve_line

__all__ = ["init_plan"]

_AROUND = {"max_num_batched_tokens": (2048, 4096, 8192), "max_num_seqs": (64, 128, 256)}
_NO_WORDS = ("true", "false", "null", "yes", "no", "on", "off")
_DRAFTED = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
_PLAN = """\
# What repeak is to tune. `repeak plan FILE` shows what it would run and how long; it launches nothing.
name: {name}

model: {model}

# In the order compared, the stack of today first. An interpreter that has vLLM works too: /path/to/bin/python
engines:
{engines}

# Flags of every launch (underscore names), and env: {{NAME: value}}. What is held fixed is checked.
serve: {serve}
{incumbent}
# The traffic that decides. Kinds: generate, edit, structured, shared_prefix, long_context, mixed, tool_loop,
# and jsonl with the path of your own requests.
workloads:
  - {{name: generate, kind: generate, output_tokens: 256, concurrency: 1}}
  - {{name: edit, kind: edit, output_tokens: 256, concurrency: 1}}
  - {{name: structured, kind: structured, output_tokens: 256, concurrency: 1}}

# One value is fixed, a list is tried, {{low: 1, high: 8}} is a range. Ready-made knobs:
# use: [vllm-speculative, vllm-batching, vllm-memory, vllm-kernels]
space:
  drafter:
{drafters}
{knobs}
# over: per_workload finds a peak for each, weighted and robust one for all. Limits: ["p99_ttft_ms <= 200"]
objective: {{metric: decode_tok_s, goal: maximize, over: per_workload}}

# 1% suits a quiet GPU, 15% with launch_noise 5% a shared CPU.
precision: {precision}
finalists: {{count: 2, launches: 3}}
budget: {{launches: 40, time: 8h}}
slots: {{count: 1, gpus: {gpus}}}
"""


def init_plan(serve_line: str, engines: Sequence[str] = ()) -> str:
    """A commented plan as YAML text; secrets in the line do not enter it.

    Args:
        serve_line: Such as `vllm serve org/name --max-num-seqs 64`; empty for a plan to fill in.
        engines: Requirements or interpreters; empty for a placeholder.

    Raises:
        PlanError: The line cannot be read.
    """
    try:
        line = parse_serve_line(serve_line) if serve_line.strip() else ServeLine(model="org/name")
    except ValueError as error:
        raise PlanError(f"the serve line cannot be used: {error}.", "Put the whole command in quotes.") from None
    fixed = {name: value for name, value in line.args.items() if name not in (*_AROUND, *_DRAFTED)}
    if "kv_cache_memory_bytes" not in fixed:
        fixed.pop("gpu_memory_utilization", None)
    model = line.model or "org/name"
    cpu = bool(engines) and all("cpu" in engine for engine in engines)
    return _PLAN.format(
        name=_yaml(re.sub(r"[^A-Za-z0-9._-]", "-", model.rstrip("/").split("/")[-1]).lstrip(".-_") or "study"),
        model=_yaml({"path" if model.startswith(("/", ".", "~")) else "id": model}),
        engines="\n".join(f"  - {_yaml(engine)}" for engine in engines or ("vllm==0.32.0",)),
        serve=_yaml({**fixed, **({"env": line.env} if line.env else {})}),
        incumbent=_incumbent(line) if serve_line.strip() else "",
        drafters=_drafters(line),
        knobs=_knobs(line),
        precision="{relative: 15%, launch_noise: 5%}" if cpu else "{relative: 1%, launch_noise: 2%}",
        gpus=0 if cpu else int(line.args.get("tensor_parallel_size", 1)),
    )


def _incumbent(line: ServeLine) -> str:
    args, _ = serve_args(Configuration(values={}), serve=line.args, space=SearchSpace())
    env = [f"{name}={value}" for name, value in line.env.items()]
    command = shlex.join([*env, "vllm", "serve", line.model or "org/name", *args])
    left = f"  # left out: {', '.join(line.dropped)}" if line.dropped else ""
    says = "# What runs today: measured first, and what every gain is told against."
    return f"\n{says}\nincumbent: {_yaml(command)}{left}\n"


def _drafters(line: ServeLine) -> str:
    today, _ = incumbent_configuration(line, SearchSpace(), {})
    drafters: dict[str, dict[str, Any]] = {"none": {}, "ngram": {"k": [2, 4, 8], "prompt_lookup_min": 2}}
    drafters["ngram"]["prompt_lookup_max"] = 4
    if today.k:
        ladder = sorted({max(1, today.k - 2), today.k, today.k + 2, today.k * 2})
        settings = {key[8:]: value for key, value in today.values.items() if key.startswith("drafter.")}
        drafters[today.drafter] = {"k": ladder, **settings}
    return "\n".join(f"    {name}: {_yaml(one)}" for name, one in drafters.items())


def _knobs(line: ServeLine) -> str:
    lines = []
    for name, usual in _AROUND.items():
        today = line.args.get(name)
        values = sorted({today // 2 or 1, today, today * 2}) if isinstance(today, int) and today > 0 else usual
        lines.append(f"  # {CATALOG[name].says}\n  {name}: {_yaml(list(values))}")
    if "kv_cache_memory_bytes" not in line.args:
        today = line.args.get("gpu_memory_utilization", 0.9)
        values = sorted({round(today - 0.05, 3), today, min(0.95, round(today + 0.03, 3))})
        lines.append(f"  # {CATALOG['gpu_memory_utilization'].says}\n  gpu_memory_utilization: {_yaml(values)}")
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    """A value in YAML's flow form; plain words stay without quotes."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_yaml(key)}: {_yaml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    word = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9._/=-]*", value)
    return value if word and value.lower() not in _NO_WORDS else json.dumps(value, ensure_ascii=False)
