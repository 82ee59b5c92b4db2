"""What a plan says of upgrades is small, checked with its line, and in the schema."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.errors import PlanError
from orchestrator.plan_file import plan_schema, read_plan
from orchestrator.plan_upgrades import Upgrades, private_url

PLAN = """name: night
model: {id: org/model}
engines: [vllm==0.32.0]
workloads: [{name: edit, kind: edit, prompt_tokens: 64, output_tokens: 64}]
upgrades:
  follow: %s
  keep: 2
  look_back: 90d
  regression: 5%%
  webhook: %s
"""


def test_a_plan_with_upgrades_is_read() -> None:
    found = read_plan(PLAN % ("'>=0.30,<0.34'", "https://hooks.example/x"), Path("plan.yaml")).upgrades
    assert (found.keep, found.look_back, found.regression) == (2, 90 * 86400, 0.05)
    assert (found.within("0.32.0"), found.pre) == (">=0.30,<0.34", False)


@pytest.mark.parametrize(
    ("follow", "webhook", "told"),
    [
        ("newest", "https://hooks.example", "plan.yaml:6: upgrades.follow: must be stable, minor, pre-releases, or"),
        ("''", "https://hooks.example", "plan.yaml:6: upgrades.follow"),
        ("stable", "hooks.example/x", "plan.yaml:10: upgrades.webhook: must be an address"),
        ("stable", "https://me:secret@hooks.example", "plan.yaml:10: upgrades.webhook: carries credentials"),
    ],
)
def test_mistakes_are_told_with_their_line(follow: str, webhook: str, told: str) -> None:
    with pytest.raises(PlanError) as error:
        read_plan(PLAN % (follow, webhook), Path("plan.yaml"))
    assert told in error.value.message


def test_the_schema_knows_it() -> None:
    fields = plan_schema()["$defs"]["Upgrades"]["properties"]
    assert set(fields) == {"follow", "index", "keep", "look_back", "regression", "webhook", "command"}
    assert all(field.get("description") or field.get("title") for field in fields.values())


@pytest.mark.parametrize(
    ("follow", "within"),
    [("stable", ""), ("pre-releases", ""), ("minor", "==0.32.*"), ("<0.34", "<0.34")],
)
def test_what_a_newer_version_must_meet(follow: str, within: str) -> None:
    assert Upgrades(follow=follow).within("0.32.1") == within


def test_an_index_of_nightly_builds_means_pre_releases_and_holds_no_password() -> None:
    assert Upgrades(index="https://wheels.example/nightly").pre
    with pytest.raises(ValidationError, match="carries credentials"):
        Upgrades(index="https://token@wheels.example/nightly")


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert private_url("https://user:pw@hooks.example:8443/a/b?c=d") == "https://hooks.example/***"
