"""Configuration: one frozen choice of a value for each knob, with a hash that never depends on order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property

from pydantic import BaseModel, ConfigDict, field_validator

__all__ = ["Configuration", "Scalar"]

Scalar = bool | int | float | str


class Configuration(BaseModel):
    """Knob name -> value; a knob that its condition switches off is absent.

    `drafter` names the drafter and `k` its draft tokens (absent under `none`); the drafter's own fixed
    settings stand as `drafter.<key>`, so that a configuration says all that it needs to be served again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: dict[str, Scalar]

    @field_validator("values")
    @classmethod
    def _sorted(cls, values: dict[str, Scalar]) -> dict[str, Scalar]:
        return dict(sorted(values.items()))

    @cached_property
    def key(self) -> str:
        """Twelve hex digits; equal values make equal keys (`1` and `1.0` are one value, `True` is not)."""
        plain = {
            name: float(value) if isinstance(value, int) and not isinstance(value, bool) else value
            for name, value in self.values.items()
        }
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def drafter(self) -> str:
        return str(self.values.get("drafter", "none"))

    @property
    def k(self) -> int:
        """Draft tokens a pass; 0 without a drafter."""
        return int(self.values.get("k", 0))

    def label(self, without: Mapping[str, Scalar] | None = None) -> str:
        """A short name for people, such as `ngram k=8, max_num_seqs=16`; leaves out what `without` holds."""
        common = without or {}
        head = self.drafter if "k" not in self.values else f"{self.drafter} k={self.k}"
        rest = [
            f"{name}={value}"
            for name, value in self.values.items()
            if name not in ("drafter", "k") and not name.startswith("drafter.") and common.get(name) != value
        ]
        return ", ".join([head, *rest])

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.key == other.key
