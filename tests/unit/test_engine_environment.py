"""An environment is built once, proven, locked, used again while it is what it was, and never half-made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock
from pydantic import ValidationError

from orchestrator.engine_environment import (
    EngineEnvironment,
    EnvironmentRequest,
    existing_environment,
    make_environment,
    serve_command,
)
from orchestrator.errors import EnvironmentBroken, LockHeld, PlanError

ENGINE = {"vllm/__init__.py": "__version__ = '{}'\n", "vllm/platforms/__init__.py": "current_platform = 1\n"}


def add_wheel(folder: Path, name: str, version: str, files: dict[str, str], needs: str = "") -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    whole = {
        **files,
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*whole, f"{stem}.dist-info/RECORD"])
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for file, text in {**whole, f"{stem}.dist-info/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(file), text)


class Machine:
    """A root of environments and a folder of small wheels, the only place packages come from."""

    def __init__(self, folder: Path) -> None:
        self.root, self.wheels = folder / "environments", folder / "wheels"
        self.wheels.mkdir()
        self.lines: list[str] = []
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "UV_CACHE_DIR": str(folder / "cache"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }
        for version in ("1.0", "1.1"):
            files = {name: text.format(version) for name, text in ENGINE.items()}
            add_wheel(self.wheels, "vllm", version, files, needs="part>=1")
        add_wheel(self.wheels, "part", "1.0", {"part.py": ""})
        add_wheel(self.wheels, "part", "2.0", {"part.py": ""})

    def make(self, requirement: str = "vllm==1.0", **more: object) -> EngineEnvironment:
        options = {"environ": self.environ, "lock_timeout_s": 60.0}
        options.update((name, more.pop(name)) for name in ("lock_timeout_s", "uv_binary") if name in more)
        request = EnvironmentRequest(requirement=requirement, **more)  # type: ignore[arg-type]
        return make_environment(request, root=self.root, progress=self.lines.append, **options)  # type: ignore[arg-type]

    @property
    def builds(self) -> int:
        return sum("to prove it" in line for line in self.lines)

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if not path.name.startswith(".lock-"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_environment_runs_from_where_it_was_put_and_says_what_it_holds(machine: Machine) -> None:
    made = machine.make()
    assert (made.version, made.packages, made.flavour) == ("1.0", {"part": "2.0", "vllm": "1.0"}, "other")
    assert made.directory == machine.root / made.key
    assert machine.left == [made.key]
    ask = [str(made.python), "-c", "import vllm; print(vllm.__file__, vllm.__cached__)"]
    module, cached = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    assert module.startswith(str(made.directory))
    assert Path(cached).is_file()
    assert serve_command(made)[:2] == [str(made.python), "-m"]


def test_the_lock_has_hashes_and_no_address(machine: Machine) -> None:
    made = machine.make()
    lock = (machine.root / made.key / "lock.txt").read_text()
    assert "vllm==1.0" in lock
    assert "--hash=sha256:" in lock
    assert "://" not in lock
    assert str(machine.wheels) not in lock


def test_the_same_request_finds_it_again_and_another_does_not(machine: Machine) -> None:
    made = machine.make()
    assert machine.make() == made
    assert machine.builds == 1
    assert existing_environment(EnvironmentRequest(requirement="vllm == 1.0"), machine.root) == made
    for other in ({"requirement": "vllm==1.1"}, {"requirement": "vllm==1.0", "constraints": ("part<2",)}):
        assert existing_environment(EnvironmentRequest(**other), machine.root) is None  # type: ignore[arg-type]


def test_constraints_and_packages_are_part_of_what_is_built(machine: Machine) -> None:
    add_wheel(machine.wheels, "beside", "3.0", {"beside.py": ""})
    made = machine.make(constraints=("part<2",), packages=("beside",))
    assert made.packages == {"beside": "3.0", "part": "1.0", "vllm": "1.0"}


def test_one_that_was_changed_by_hand_is_built_anew_and_the_change_is_named(machine: Machine) -> None:
    made = machine.make()
    info = next((machine.root / made.key).rglob("part-2.0.dist-info"))
    shutil.rmtree(info)
    assert machine.make() == made
    assert machine.builds == 2
    assert any("part 2.0 -> absent" in line for line in machine.lines)
    assert machine.left == [made.key]


def test_one_whose_interpreter_is_gone_is_built_anew(machine: Machine) -> None:
    made = machine.make()
    made.python.unlink()
    assert existing_environment(EnvironmentRequest(requirement="vllm==1.0"), machine.root) is None
    assert machine.make() == made
    assert machine.builds == 2


def test_an_environment_that_was_moved_with_its_root_is_still_good(machine: Machine) -> None:
    made = machine.make()
    machine.root = machine.root.rename(machine.root.with_name("elsewhere"))
    again = machine.make()
    assert again.python == machine.root / made.key / "bin" / "python"
    assert machine.builds == 1


def test_two_that_want_the_same_at_once_build_it_once(machine: Machine) -> None:
    made: list[EngineEnvironment] = []
    threads = [threading.Thread(target=lambda: made.append(machine.make())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(made) == 2
    assert made[0] == made[1]
    assert machine.builds == 1


def test_waiting_for_another_that_makes_it_has_an_end(machine: Machine) -> None:
    key = machine.make().key
    with FileLock(machine.root / f".lock-{key}"), pytest.raises(LockHeld, match=key):
        machine.make(lock_timeout_s=0.1)


def test_what_was_left_half_made_is_removed_unless_it_is_being_made(machine: Machine) -> None:
    for name in ("left", "busy"):
        (machine.root / f".making-{name}" / "lib").mkdir(parents=True)
    with FileLock(machine.root / ".lock-busy"):
        made = machine.make()
    assert machine.left == [".making-busy", made.key]


@pytest.mark.parametrize("step", ["venv", "pip compile", "pip sync", "pip check"])
def test_a_step_that_fails_leaves_nothing_behind(machine: Machine, tmp_path: Path, step: str) -> None:
    real = Path(sys.executable).with_name("uv")
    fake = tmp_path / "uv"
    fake.write_text(f'#!/bin/sh\ncase "$*" in "{step}"*) echo "error: no" >&2; exit 2;; esac\nexec {real} "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(EnvironmentBroken, match="error: no"):
        machine.make(uv_binary=str(fake))
    assert machine.left == []


def test_an_engine_that_cannot_be_imported_is_no_environment(machine: Machine) -> None:
    add_wheel(machine.wheels, "vllm", "2.0", {"vllm/__init__.py": "raise OSError('undefined symbol')"})
    with pytest.raises(EnvironmentBroken, match="undefined symbol"):
        machine.make("vllm==2.0")
    assert machine.left == []


def test_a_folder_with_a_cpu_torch_does_not_turn_an_engine_for_gpus_into_one_for_the_cpu(
    machine: Machine,
) -> None:
    for version in ("2.13.0", "2.13.0+cpu"):
        add_wheel(machine.wheels, "torch", version, {"torch/__init__.py": ""})
    add_wheel(machine.wheels, "vllm", "3.0", {name: text.format("3.0") for name, text in ENGINE.items()}, "torch")
    assert machine.make("vllm==3.0").packages["torch"] == "2.13.0"


def test_a_version_that_does_not_exist_is_told_with_its_neighbours(machine: Machine) -> None:
    with pytest.raises(PlanError, match=r"There is no vllm==1\.0\.5") as caught:
        machine.make("vllm==1.0.5")
    assert caught.value.hint == "The nearest: vllm==1.0, vllm==1.1."
    assert machine.left == []


def test_credentials_reach_neither_the_lines_nor_the_files(machine: Machine) -> None:
    del machine.environ["PIP_NO_INDEX"]
    machine.environ["PIP_INDEX_URL"] = "http://me:s3cret@127.0.0.1:1/simple"
    machine.environ["UV_HTTP_RETRIES"] = "0"
    with pytest.raises(EnvironmentBroken) as caught:
        machine.make()
    assert "s3cret" not in "\n".join([*machine.lines, str(caught.value)])


def test_an_adopted_interpreter_is_used_as_it_is_and_not_touched(machine: Machine) -> None:
    made = machine.make()
    before = {file: file.stat().st_mtime_ns for file in (machine.root / made.key).rglob("*")}
    adopted = existing_environment(EnvironmentRequest(adopt=str(made.directory)), machine.root)
    assert adopted is not None
    assert (adopted.python, adopted.directory, adopted.adopted) == (made.python, None, True)
    assert (adopted.requirement, adopted.version) == ("vllm==1.0", "1.0")
    assert adopted.packages == made.packages
    assert {file: file.stat().st_mtime_ns for file in (machine.root / made.key).rglob("*")} == before


def test_an_interpreter_without_an_engine_is_not_adopted(machine: Machine) -> None:
    with pytest.raises(EnvironmentBroken, match="has no vLLM"):
        make_environment(EnvironmentRequest(adopt=sys.executable), root=machine.root, progress=machine.lines.append)


def test_a_request_names_one_source() -> None:
    for both in ({}, {"requirement": "vllm==1", "adopt": "/x"}):
        with pytest.raises(ValidationError, match="a requirement"):
            EnvironmentRequest.model_validate(both)


def test_the_manifest_keeps_request_times_and_what_the_engine_said_of_itself(machine: Machine) -> None:
    made = machine.make(constraints=("part<2",))
    manifest = json.loads((machine.root / made.key / "manifest.json").read_text())
    assert manifest["request"]["constraints"] == ["part<2"]
    assert manifest["imported"] == {"version": "1.0", "platform": "int"}
    assert manifest["made_in_s"] > 0
