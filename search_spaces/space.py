"""SearchSpace: the knobs of a study with their conditions, and the configurations they span."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import combinations, islice

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from .condition import bare_words, holds
from .configuration import Configuration, Scalar
from .drafters import DRAFTERS, drafter_knobs
from .knob import Knob
from .versions import lacks

__all__ = ["Problem", "SearchSpace", "problems_error", "same_target"]

Problem = tuple[tuple[str | int, ...], str]
"""Where in the input (keys and indexes below the place that is validated), and what is wrong there."""
_COUNTED = 10_000


def problems_error(problems: Sequence[Problem]) -> PydanticCustomError:
    """Several located problems as one error that a pydantic validator may raise (`ctx["problems"]`)."""
    text = "; ".join(message for _, message in problems)
    return PydanticCustomError("problems", "{text}", {"text": text, "problems": list(problems)})


def same_target(one: str | None, other: str | None) -> bool:
    """Whether two flags set the same thing: they are equal, or one is a key within the JSON of the other."""
    if one is None or other is None:
        return False
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


class SearchSpace(BaseModel):
    """What a study may choose. Order matters: a knob stands behind those its condition names.

    `settings` are each drafter's fixed settings; `forbid` lists conditions that no configuration may meet;
    `absent` names knobs that the plan has and this engine version has not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    knobs: tuple[Knob, ...] = Field(default_factory=lambda: tuple(drafter_knobs({"none": None})))
    settings: dict[str, dict[str, Scalar]] = Field(default_factory=dict)
    forbid: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> SearchSpace:
        # Unconditional knobs first, so that going through the knobs in order decides each condition.
        ordered = sorted(self.knobs, key=lambda knob: (knob.name != "drafter", knob.name != "k", bool(knob.only_if)))
        object.__setattr__(self, "knobs", tuple(ordered))
        problems = [*self._condition_problems(), *self._target_problems(), *self._forbid_problems()]
        if problems:
            raise problems_error(problems)
        return self

    def complete(self, chosen: Mapping[str, Scalar]) -> Configuration:
        """Some values made whole: the rest at its first value, the drafter's settings added."""
        values: dict[str, Scalar] = {}
        for knob in self.knobs:
            if knob.active(values):
                values[knob.name] = chosen.get(knob.name, knob.first)
        for key, value in self.settings.get(str(values.get("drafter", "none")), {}).items():
            values[f"drafter.{key}"] = value
        return Configuration(values=values)

    @property
    def defaults(self) -> Configuration:
        """Every knob at its first value."""
        return self.complete({})

    @property
    def fixed(self) -> dict[str, Scalar]:
        """Knobs that exist always and have one value: what every configuration shares."""
        return {knob.name: knob.first for knob in self.knobs if knob.fixed and not knob.only_if}

    def problem(self, configuration: Configuration) -> str | None:
        """Why a configuration is not of this space, in words; None where it is."""
        values, known = configuration.values, dict(self.complete(configuration.values).values)
        for name in sorted(values.keys() ^ known.keys()):
            return f"{name} is not a knob here" if name in values else f"{name} is missing"
        for knob in self.knobs:
            if knob.active(values) and not knob.holds(values[knob.name]):
                return f"{knob.name} cannot be {values[knob.name]}"
        for name, value in known.items():
            if name.startswith("drafter.") and values[name] != value:
                return f"{name} is fixed at {value}"
        return next((f"forbidden: {text}" for text in self.forbid if holds(text, values, self._names)), None)

    def contains(self, configuration: Configuration) -> bool:
        return self.problem(configuration) is None

    def enumerate(self, limit: int | None = None) -> Iterator[Configuration]:
        """Configurations in a fixed order, the grid of a range standing for the range."""
        whole = (self.complete(values) for values in self._assignments({}, self.knobs))
        return islice((one for one in whole if self.contains(one)), limit)

    def size(self) -> int | None:
        """Number of configurations: exact to 10 000, a bound above; None where a grid is only a part."""
        if any(knob.partial for knob in self.knobs):
            return None
        bound = 0
        for drafter in self._knob("drafter").grid():
            here = [knob for knob in self.knobs[1:] if drafter in knob.only_if.get("drafter", (drafter,))]
            bound += math.prod(len(knob.grid()) for knob in here)
        return sum(1 for _ in self.enumerate()) if bound <= _COUNTED else bound

    def neighbours(self, configuration: Configuration) -> tuple[Configuration, ...]:
        """Configurations one knob away; another drafter starts with its k closest to the one there is."""
        here = self.complete(configuration.values)
        found: dict[str, Configuration] = {}
        for knob in self.knobs:
            if not knob.active(here.values):
                continue
            for value in knob.near(here.values[knob.name]):
                one = self._moved(here, knob, value)
                if one.key != here.key and self.contains(one):
                    found[one.key] = one
        return tuple(found.values())

    def opening(self) -> Iterator[Configuration]:
        """Where a cold search starts: the defaults, then each other drafter in the middle of its k."""
        yield from (one for one in (self.defaults,) if self.contains(one))
        for drafter in self._knob("drafter").near(self._knob("drafter").first):
            chosen: dict[str, Scalar] = {"drafter": drafter}
            chosen.update({knob.name: _middle(knob) for knob in self.knobs if knob.name == "k" and knob.active(chosen)})
            yield from (one for one in (self.complete(chosen),) if self.contains(one))

    def simplest(self, configurations: Iterable[Configuration]) -> Configuration:
        """The one that asks least of whoever runs it: no drafter, fewest knobs off their default, small k."""
        return min(configurations, key=self._complexity)

    def on(self, version: str | None) -> tuple[SearchSpace, tuple[str, ...]]:
        """This space on one engine version, and a sentence for each knob or drafter that it lacks."""
        gone = [knob for knob in self.knobs if knob.absent_in(version)]
        names = self._knob("drafter").grid()
        lacking = [name for name in names if lacks(version, DRAFTERS[str(name)].since, DRAFTERS[str(name)].until)]
        kept = [name for name in names if name not in lacking] or ["none"]
        knobs = [
            knob.model_copy(update={"choices": tuple(kept)}) if knob.name == "drafter" else knob
            for knob in self.knobs
            if knob not in gone and set(knob.only_if.get("drafter", kept)) & set(kept)
        ]
        said = [f"{knob.name} ({knob.flag or knob.env}) does not exist in {version}" for knob in gone]
        said += [f"the drafter {name} does not exist in {version}" for name in lacking]
        left = {knob.name for knob in knobs}
        knobs = [knob for knob in knobs if knob.only_if.keys() <= left]
        absent = tuple(sorted({knob.name for knob in self.knobs} - {knob.name for knob in knobs}))
        return self.model_copy(update={"knobs": tuple(knobs), "absent": absent}), tuple(said)

    @property
    def _names(self) -> set[str]:
        return {knob.name for knob in self.knobs} | set(self.absent) | {"k"}

    def _knob(self, name: str) -> Knob:
        return next(knob for knob in self.knobs if knob.name == name)

    def _moved(self, here: Configuration, knob: Knob, value: Scalar) -> Configuration:
        chosen = {**here.values, knob.name: value}
        for other in self.knobs:
            if other.active(chosen) and other.name in here.values and other is not knob:
                chosen[other.name] = other.nearest(here.values[other.name])
            elif other.name == "k" and other.active(chosen) and other is not knob:
                chosen["k"] = _middle(other)
        return self.complete(chosen)

    def _complexity(self, configuration: Configuration) -> tuple[int, int, int]:
        defaults = self.defaults.values
        others = [name for name in configuration.values if name not in ("drafter", "k")]
        changed = sum(configuration.values[name] != defaults.get(name) for name in others)
        return int(configuration.drafter != "none"), changed, configuration.k

    def _assignments(self, values: dict[str, Scalar], knobs: Sequence[Knob]) -> Iterator[dict[str, Scalar]]:
        if not knobs:
            yield values
        elif not knobs[0].active(values):
            yield from self._assignments(values, knobs[1:])
        else:
            for value in knobs[0].grid():
                yield from self._assignments({**values, knobs[0].name: value}, knobs[1:])

    def _condition_problems(self) -> Iterator[Problem]:
        names = [knob.name for knob in self.knobs if knob.name != "k"]
        yield from (((name,), f"{name} stands here twice") for name in {*names} if names.count(name) > 1)
        free = {knob.name for knob in self.knobs if not knob.only_if}
        for knob in self.knobs:
            for other in knob.only_if.keys() - free:
                yield (knob.name, "only_if"), f"{other} is no knob that always exists"

    def _target_problems(self) -> Iterator[Problem]:
        for one, other in combinations(self.knobs, 2):
            if same_target(one.flag, other.flag) or (one.env and one.env == other.env):
                target = other.flag or other.env
                yield (other.name,), f"{other.name} and {one.name} are two knobs with one flag, {target}"

    def _forbid_problems(self) -> Iterator[Problem]:
        words = {str(value) for knob in self.knobs for value in knob.choices or ()}
        known = self._names | words | DRAFTERS.keys()
        for index, text in enumerate(self.forbid):
            try:
                unknown = sorted(bare_words(text) - known)
                for word in unknown:
                    close = [f"; did you mean {one}?" for one in get_close_matches(word, known, n=1)]
                    yield ("forbid", index), f"{word} is neither a knob nor a value{''.join(close)}"
                if not unknown:
                    holds(text, {knob.name: knob.first for knob in self.knobs}, self._names)
            except ValueError as error:
                yield ("forbid", index), str(error)


def _middle(knob: Knob) -> Scalar:
    return knob.grid()[len(knob.grid()) // 2]
