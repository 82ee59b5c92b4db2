"""Knob: one setting of an engine, the values it may take, and the flag or variable it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from .configuration import Scalar
from .values import Values
from .versions import lacks

__all__ = ["Knob", "KnobInput", "Resource", "normal_flag"]

Resource = Literal["kv", "activation", "device", "host"]


def normal_flag(text: str) -> str:
    """`max_num_seqs` or `--max_num_seqs` -> `--max-num-seqs`; keys after a dot stay as they are."""
    head, dot, keys = text.lstrip("-").partition(".")
    return "--" + head.replace("_", "-") + dot + keys


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, bool | int | float | str) else given


class KnobInput(Values):
    """A knob as a plan writes it: its values and, where it is not ready-made, its flag or variable."""

    flag: Annotated[str, BeforeValidator(lambda text: normal_flag(str(text)))] | None = Field(
        None,
        pattern=r"^--[a-z0-9][a-z0-9-]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
        description="Full flag; --a.b sets the key b in the JSON of --a.",
    )
    env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Environment variable.")
    says: str = Field("", description="One sentence: what the knob does.")
    default: Scalar | None = Field(None, description="The value that leaves things as they are; wins ties.")
    only_if: dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(_listed)]] = Field(
        default_factory=dict, description="Other knob -> the values under which this knob exists."
    )
    since: str | None = Field(None, description="First engine version that has it.")
    until: str | None = Field(None, description="First engine version that no longer has it.")
    nulls: tuple[str, ...] = Field((), description="Metrics that it cannot touch.")
    needs: tuple[Resource, ...] = Field((), description="Memory that it asks more of as it grows.")
    restart: bool = Field(default=True, description="Whether a new value needs a new engine start.")

    @model_validator(mode="after")
    def _one_target(self) -> KnobInput:
        if self.flag and self.env:
            raise ValueError("has a flag and a variable; it can be one of them")
        if self.flag and self.flag.startswith("--no-"):
            raise ValueError(f"names {self.flag}; name the flag without no- and give choices [true, false]")
        return self


class Knob(KnobInput):
    """One setting; the choice `default` leaves its flag out, so that the engine decides.

    `name` is its key in a Configuration. Knobs of one name may stand side by side under conditions that
    exclude each other: each drafter has its own `k`.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")

    @property
    def parameter(self) -> str:
        """The searcher's name for it: `k_ngram` for a drafter's k, as their scales differ."""
        return f"k_{self.only_if['drafter'][0]}" if self.name == "k" else self.name

    @property
    def first(self) -> Scalar:
        """The value that stands for leaving it alone: its default, else the first on its list."""
        return self.default if self.default is not None and self.holds(self.default) else self.grid()[0]

    def active(self, values: Mapping[str, Scalar]) -> bool:
        """Whether the knob exists beside these values."""
        return all(values.get(other) in allowed for other, allowed in self.only_if.items())

    def absent_in(self, version: str | None) -> bool:
        """Whether this engine version has no such knob."""
        return lacks(version, self.since, self.until)
