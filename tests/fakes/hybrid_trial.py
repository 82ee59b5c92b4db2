"""What a launch of the tiny hybrid on vLLM 0.32.0 left behind: its command, its log, its server's labels."""

from __future__ import annotations

from pathlib import Path

from orchestrator.engine_log import LABELS
from orchestrator.metrics_page import parse_metrics

FIXTURES = Path(__file__).parent.parent / "fixtures"
TINY = FIXTURES / "models" / "tiny-hybrid"
LOG = (FIXTURES / "logs" / "v0.32.0_hybrid_dummy_bf16.log").read_text(errors="replace")
PAGE = parse_metrics((FIXTURES / "audit" / "v0.32.0_hybrid_after.txt").read_text())
LABELLED = {f"{LABELS}{name}": text for name, text in PAGE.labels("vllm:cache_config_info").items()}
SERVE = ("/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", str(TINY))
ARGV = (*SERVE, "--dtype", "bfloat16", "--max-model-len=4096", "--host", "127.0.0.1", "--port", "8377")
STACK = {"vllm": "0.32.0", "model": "tiny-hybrid", "env.VLLM_CPU_KVCACHE_SPACE": "1"}
