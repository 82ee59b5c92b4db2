"""Values: what may be chosen for one setting, as a list of choices or as a range."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from .configuration import Scalar

__all__ = ["Values"]

_POINTS = 5  # of a real range on a grid
_STRIDES = 8  # neighbours of a wide range lie an eighth of it apart


class Values(BaseModel):
    """`choices`, or a range from `low` to `high`, both included.

    In a plan one value alone stands for one choice (fixed), a list for choices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    choices: tuple[Scalar, ...] | None = Field(None, min_length=1, description="The values to choose from.")
    low: int | float | None = Field(None, description="The smallest value of a range.")
    high: int | float | None = Field(None, description="The largest value of a range.")
    step: int | float | None = Field(None, gt=0, description="Distance between two values of a range.")
    log: bool = Field(default=False, description="Whether each doubling counts as one step.")

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, given: Any) -> Any:
        if isinstance(given, bool | int | float | str):
            return {"choices": [given]}
        return {"choices": given} if isinstance(given, list | tuple) else given

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        scalar = {"type": ["boolean", "number", "string"]}
        return {"anyOf": [scalar, {"type": "array", "items": scalar, "minItems": 1}, handler(core)]}

    @model_validator(mode="after")
    def _one_form(self) -> Values:
        ranged = {"low", "high", "step", "log"} & {name for name, value in self if value}
        if self.choices is not None:
            if ranged:
                raise ValueError("has choices and a range; give one of them")
            if len({_identity(one) for one in self.choices}) < len(self.choices):
                raise ValueError("names one value twice")
        elif self.low is None or self.high is None:
            raise ValueError("needs choices, or both low and high")
        elif self.low > self.high:
            raise ValueError(f"has low {self.low} above high {self.high}")
        elif self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("has log, which needs low above 0 and takes no step")
        return self

    @property
    def fixed(self) -> bool:
        """Whether there is only one value."""
        return len(self.choices) == 1 if self.choices is not None else self.low == self.high

    @property
    def whole(self) -> bool:
        """Whether a range has whole numbers only."""
        return all(isinstance(bound, int) for bound in (self.low, self.high, self.step or 1))

    @property
    def partial(self) -> bool:
        """Whether the range holds more values than its grid."""
        return not (self.choices or self.fixed or self.step or (self.whole and not self.log))

    @property
    def ordered(self) -> bool:
        """Whether one value can be larger than another: ranges, and choices that are all numbers."""
        return all(isinstance(one, int | float) and not isinstance(one, bool) for one in self.choices or ())

    def holds(self, value: object) -> bool:
        """Whether this value may be chosen; a real range without a step holds every number within it."""
        if self.choices is not None:
            return any(_identity(one) == _identity(value) for one in self.choices)
        low, high = self.low or 0, self.high or 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            return False
        steps = (value - low) / (self.step or 1)
        return abs(steps - round(steps)) < 1e-9 or not (self.whole or self.step)

    def grid(self) -> tuple[Scalar, ...]:
        """The values as a list: all of them; doublings on a log scale; five points of a real range."""
        if self.choices is not None:
            return self.choices
        low, high = self.low or 0, self.high or 0
        if self.fixed:
            return (low,)
        if self.whole and self.log:
            doublings = [low * 2**power for power in range(int(math.log2(high / low)) + 1)]
            return (*(one for one in doublings if one < high), high)
        if self.whole or self.step:
            step = self.step or 1
            return tuple(_tidy(low + index * step) for index in range(int((high - low) / step + 1e-9) + 1))
        parts = [index / (_POINTS - 1) for index in range(_POINTS)]
        return tuple(_tidy(low * (high / low) ** x if self.log else low + (high - low) * x) for x in parts)

    def near(self, value: Scalar) -> tuple[Scalar, ...]:
        """One step from a value: the next smaller and larger, or every other choice where none is larger."""
        grid = self.grid()
        if not self.ordered or isinstance(value, bool | str):
            return tuple(one for one in grid if _identity(one) != _identity(value))
        numbers = {float(one): one for one in sorted(grid, key=float)}
        stride = 1 if self.choices or self.log else max(1, (len(numbers) - 1) // _STRIDES)
        below = [one for number, one in numbers.items() if number < float(value)]
        above = [one for number, one in numbers.items() if number > float(value)]
        return (*below[-stride:][:1], *above[:stride][-1:])

    def nearest(self, value: Scalar | None) -> Scalar:
        """The value itself where it may be chosen, else the closest number, else the first choice."""
        if value is not None and self.holds(value):
            return value
        grid = self.grid()
        if value is None or isinstance(value, bool | str) or not self.ordered:
            return grid[0]
        target = float(value)
        return min(grid, key=lambda one: abs(float(one) - target))


def _identity(value: object) -> tuple[bool, object]:
    return isinstance(value, bool), value  # True is not 1 on a command line


def _tidy(number: float) -> int | float:
    return number if isinstance(number, int) else round(number, 9)
