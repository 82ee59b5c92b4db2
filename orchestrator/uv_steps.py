"""The steps by which uv fills an engine environment, each bounded, and what their failures mean."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import uv

from .environment_recipe import Recipe, write_shim
from .errors import EnvironmentBroken, PlanError, RepeakError
from .pip_settings import redact, uv_settings

__all__ = ["Uv", "UvFailed", "explain", "install"]

_SHORT_TIMEOUT_S = 120
_RESOLVE_TIMEOUT_S = 900
_INSTALL_TIMEOUT_S = 5400


class UvFailed(Exception):
    """A step of uv that failed or took too long, with what it said, credentials taken out."""

    def __init__(self, step: str, text: str) -> None:
        super().__init__(f"{step}: {text}")
        self.step, self.text = step, text


class Uv:
    """The program uv with the package settings that pip has here.

    Args:
        environ: The variables whose pip and uv settings count.
        progress: Called with each line that uv prints, credentials taken out.
        binary: Which uv; the one installed beside us when left out.
    """

    def __init__(self, environ: Mapping[str, str], progress: Callable[[str], None], binary: str | None = None) -> None:
        settings = uv_settings(environ)
        self.environ = {**settings.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
        self.arguments = settings.arguments
        self.progress = progress
        self.binary = binary or uv.find_uv_bin()

    def look_into(self, wheels: Path) -> None:
        """Lets later steps find packages in a directory of wheels too."""
        links = [*filter(None, [self.environ.get("UV_FIND_LINKS")]), str(wheels)]
        self.environ["UV_FIND_LINKS"] = ",".join(links)

    def run(self, *command: str, timeout_s: float, cwd: Path | None = None, silent: bool = False) -> str:
        """Runs one step and returns its messages, which `silent` keeps from `progress`.

        Raises:
            UvFailed: It failed, or was ended after `timeout_s`.
        """
        started = time.monotonic()
        with self._start(command, cwd) as child:
            timer = threading.Timer(timeout_s, _end, [child])
            timer.start()
            try:
                said = "\n".join([self._heard(line, silent=silent) for line in child.stderr or ()])
                code = child.wait()
            finally:
                timer.cancel()
                _end(child)
        if code != 0:
            late = time.monotonic() - started >= timeout_s
            step = " ".join(["uv", *(word for word in command[:2] if word.isalpha())])
            raise UvFailed(step, f"{said}\n" + (f"ended after {timeout_s:.0f} s" if late else f"exit code {code}"))
        return said

    def _start(self, command: Sequence[str], cwd: Path | None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.binary, *command],
            env=self.environ,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _heard(self, line: str, *, silent: bool) -> str:
        clean = redact(line.rstrip())
        if clean and not silent:
            self.progress(clean)
        return clean


def _end(child: subprocess.Popen[str]) -> None:
    """Kills uv and what it started."""
    with suppress(ProcessLookupError):
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)


def install(steps: Uv, directory: Path, recipe: Recipe, interpreter: Path, also: Mapping[str, Sequence[str]]) -> bytes:
    """Makes a virtual environment in a directory and fills it from a lock made here; returns the lock.

    The lock holds hashes and no address, so that it means the same wherever the packages come from.

    Args:
        steps: The program uv.
        directory: Not there yet.
        recipe: What the engine needs.
        interpreter: The Python of the environment.
        also: Requirements: `packages` to have beside the engine, and `constraints` on all.

    Raises:
        UvFailed: A step failed or took too long.
    """
    venv = ("venv", "--quiet", "--relocatable", "--no-project", "--python", str(interpreter), str(directory))
    steps.run(*venv, timeout_s=_SHORT_TIMEOUT_S)
    if recipe.shim:
        steps.look_into(write_shim(recipe, directory / "shims").parent)
    wanted = [recipe.requirement, *filter(None, [recipe.shim]), *also.get("packages", ())]
    files = {"constraints": also.get("constraints", ()), "overrides": recipe.overrides, "wanted": wanted}
    for name, lines in files.items():
        (directory / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    limits = [word for name in ("constraints", "overrides") if files[name] for word in (f"--{name}", f"{name}.txt")]
    source = _lock(steps, directory, recipe, limits)
    sync = ("pip", "sync", "--python", "bin/python", *source, "--compile-bytecode", "lock.txt")
    steps.run(*sync, timeout_s=_INSTALL_TIMEOUT_S, cwd=directory)
    _check(steps, directory, recipe)
    return (directory / "lock.txt").read_bytes()


def _lock(steps: Uv, directory: Path, recipe: Recipe, limits: Sequence[str]) -> tuple[str, ...]:
    """Resolves into `lock.txt`; returns the arguments that say where packages were found."""
    style = ("--generate-hashes", "--no-header", "--no-annotate", "--output-file", "lock.txt")
    for number, backend in enumerate(recipe.torch_backends, start=1):
        source = (*steps.arguments, *(("--torch-backend", backend) if backend else ()))
        command = ("pip", "compile", "--python", "bin/python", *source, *style, *limits)
        try:
            steps.run(*command, "wanted.txt", timeout_s=_RESOLVE_TIMEOUT_S, cwd=directory)
            wrong = recipe.refuses((directory / "lock.txt").read_text(encoding="utf-8"))
            if wrong:
                steps.progress(f"{wrong} does not fit {recipe.requirement}; resolving without it")
                (directory / "refused.txt").write_text(wrong.replace("==", "!=") + "\n", encoding="utf-8")
                refused = ("--constraints", "refused.txt")
                steps.run(*command, *refused, "wanted.txt", timeout_s=_RESOLVE_TIMEOUT_S, cwd=directory)
                # The lock's `torch==X` alone would be satisfied by `X+cpu` once more.
                source = (*source, *refused)
        except UvFailed as failure:
            if number == len(recipe.torch_backends) or "+cpu" not in failure.text:
                raise
            steps.progress("no CPU build of torch among the configured packages; asking its own index")
        else:
            return source
    raise AssertionError("a recipe names at least one place for torch")


def _check(steps: Uv, directory: Path, recipe: Recipe) -> None:
    """The consistency check of uv, less what was dropped and the engine's platform tag (it gets imported)."""
    try:
        steps.run("pip", "check", "--python", "bin/python", timeout_s=_SHORT_TIMEOUT_S, cwd=directory, silent=True)
    except UvFailed as failure:
        dropped = "|".join(map(re.escape, recipe.drops)) or "(?!)"
        engine = re.escape(recipe.distribution)
        fine = rf"requires `(?:{dropped})\b.*not installed|`{engine}` was built for a different platform"
        found = [line for line in failure.text.splitlines() if line.startswith("The package")]
        rest = [line for line in found if not re.search(fine, line)]
        if rest or not found:
            raise UvFailed(failure.step, "\n".join(rest) or failure.text) from failure


def explain(failure: UvFailed, recipe: Recipe, steps: Uv) -> RepeakError:
    """The failure of a step as an error that says what happened and what to do."""
    name, said = recipe.distribution, failure.text
    if f"there is no version of {name}==" in said:
        return PlanError(f"There is no {recipe.requirement}.", _nearest(recipe, steps))
    if f"{name} was not found" in said:
        return PlanError(f"The package index has no {name}.", "Check its name and pip's index settings.")
    tail = "\n".join(said.strip().splitlines()[-12:])
    if recipe.cpu and "torch" in said and ("+cpu" in said or "Failed to fetch" in said):
        return EnvironmentBroken(
            f"{recipe.requirement} needs a CPU build of torch, and none was found:\n{tail}",
            "Put its +cpu wheel for this Python into a folder that pip's find-links names, or make PyTorch's"
            " index of CPU wheels reachable, which uv's --torch-backend cpu asks.",
        )
    hint = "Check pip's index settings, the network, the Python version and the constraints."
    if recipe.torch_backends[-1] and not recipe.cpu:
        hint += " A torch_backend asks PyTorch's own index: leave it out where that cannot be reached."
    return EnvironmentBroken(f"{recipe.requirement} could not be installed, {failure.step} failed:\n{tail}", hint)


def _nearest(recipe: Recipe, steps: Uv) -> str:
    """The versions on either side of one that does not exist, by two small resolutions."""
    found = []
    for side, highest in (("<", "highest"), (">", "lowest")):
        words = (
            "pip",
            "compile",
            "-q",
            "--no-deps",
            "--no-header",
            "--no-annotate",
            "--resolution",
            highest,
            "-",
        )
        done = subprocess.run(
            [steps.binary, *words, *steps.arguments],
            input=f"{recipe.distribution}{side}{recipe.version}",
            env=steps.environ,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_SHORT_TIMEOUT_S,
            check=False,
        )
        found += done.stdout.split()[:1]
    return f"The nearest: {', '.join(found)}." if found else "Check the version and pip's index settings."
