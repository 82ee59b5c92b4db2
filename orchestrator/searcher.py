"""Searcher: proposes the next configuration and is told the outcome; the only file that knows Optuna."""

from __future__ import annotations

import importlib.util
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from search_spaces.configuration import Configuration, Scalar
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace

from .errors import PlanError

__all__ = ["Searcher"]

_LISTED = 10_000
_BEST, _NEWEST = 50, 150  # what the sampler still sees of a long study: its time grows with what it sees
_AT_RANDOM = 4  # results, the opening's among them, before the model is asked: with more a small budget is all luck
_CONVERGED = 8  # proposals of what is known, in one ask: five found no worse than twenty, but met more that fails
_ONE_AT_A_TIME = threading.Lock()

_Known = tuple[Configuration, Sequence[float] | None, Mapping[str, float]]

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Searcher:
    """One Optuna study in memory, refilled from records: resuming is the same code as starting.

    `goals` values are told in the order given, larger is better (the caller flips and takes logs). A failed
    configuration is told as PRUNED with a constraint, since TPE ignores FAIL.

    Args:
        space: What may be chosen.
        goals: Number of objectives.
        sampler: tpe, gp, cmaes, random, grid or one_knob.
        seed: For the sampler.
        queue: Configurations to propose first, in this order.
        known: What is already measured: (configuration, values or None, constraints).
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        goals: int = 1,
        sampler: str = "tpe",
        seed: int = 0,
        queue: Sequence[Configuration] = (),
        known: Sequence[_Known] = (),
    ) -> None:
        self._space = space
        self._goals, self._seed, self._sampler = goals, seed, sampler
        self._told: dict[str, _Known] = {}
        self._asked: dict[str, tuple[Configuration, optuna.trial.Trial]] = {}
        self._study = self._fresh()
        for configuration, values, constraints in known:
            self._add(configuration, values, constraints)
        self._queue = [one for one in queue if one.key not in self._told]

    def ask(
        self,
        tries: int = 20,
        *,
        first: Callable[[], Configuration | None] = lambda: None,
        avoid: Callable[[Configuration], bool] = lambda _: False,
    ) -> Configuration | None:
        """The next configuration that has not been told yet; None when the space is used up.

        A sampler that proposes what is known again and again has converged: then one knob is moved from
        the best, and at last the rest of the space is gone through. One that insists on what is to be avoided
        has not: then anything else is drawn, for a climb from the best would end on the first hill. What is to
        be avoided is proposed only where nothing else is left. `first` goes before the sampler, after the queue.
        """
        while self._queue:
            configuration = self._queue.pop(0)
            if configuration.key not in self._told:
                return self._ask_for(configuration)
        own = first()
        if own is not None and self._new(own) and not avoid(own):
            return self._ask_for(own)
        self._shorten()
        insists, known = False, 0
        while known < _CONVERGED and tries > 0:
            trial, tries = self._study.ask(), tries - 1
            proposed = self._configuration(trial)
            if new := self._new(proposed) and self._space.contains(proposed):
                if not avoid(proposed):
                    self._asked[proposed.key] = (proposed, trial)
                    return proposed
                insists = True
            known += not new
            self._study.tell(trial, state=TrialState.FAIL)
        for wary in (True, False):
            for candidate in self._drawn() if insists and wary else self._around_the_best():
                if self._new(candidate) and not (wary and avoid(candidate)):
                    return self._ask_for(candidate)
        return None

    def _new(self, configuration: Configuration) -> bool:
        """Neither told nor under way, in another slot."""
        return configuration.key not in self._told and configuration.key not in self._asked

    def tell(
        self,
        configuration: Configuration,
        values: Sequence[float] | None,
        constraints: Mapping[str, float] | None = None,
    ) -> None:
        """Close what was asked: `values` of a measured trial, or None for one that could not be measured.

        A constraint is met at or under zero.
        """
        _, trial = self._asked.pop(configuration.key, (None, None))
        if trial is None:
            self._add(configuration, values, constraints or {})
            return
        self._told[configuration.key] = (configuration, values, constraints or {})
        for name, value in (constraints or {}).items():
            trial.set_constraint(name, value)
        if values is None:
            trial.set_constraint("could_not_run", 1.0)
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, list(values))

    def _fresh(self) -> optuna.Study:
        # What is hushed is hushed for the whole process: two studies at once must not undo each other's.
        with _ONE_AT_A_TIME, warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = _sampler(self._sampler, self._seed + len(self._told), self._goals)
            return optuna.create_study(directions=["maximize"] * self._goals, sampler=sampler)

    def _shorten(self) -> None:
        """Let go of what a sampler proposed in vain, and of all trials but the best, the newest and those under way."""
        if len(self._study.get_trials(deepcopy=False)) <= 2 * (_BEST + _NEWEST):
            return
        self._study = self._fresh()
        kept = {one.key for one in self._measured()[:_BEST]} | set(list(self._told)[-_NEWEST:])
        for key in [key for key in self._told if key in kept]:
            self._add(*self._told[key])
        asked, self._asked = self._asked, {}
        for configuration, _ in asked.values():
            self._ask_for(configuration)

    def _measured(self) -> list[Configuration]:
        """Best first."""
        values = {key: sum(values) for key, (_, values, _) in self._told.items() if values is not None}
        return [self._told[key][0] for key in sorted(values, key=values.__getitem__, reverse=True)]

    def _around_the_best(self) -> Iterator[Configuration]:
        for best in self._measured()[:1]:
            yield from self._space.neighbours(best)
        yield from self._space.enumerate(limit=_LISTED)

    def _drawn(self) -> list[Configuration]:
        """The space in an order of chance, the same one after a restart."""
        listed = list(self._space.enumerate(limit=_LISTED))
        return [listed[at] for at in np.random.default_rng((self._seed, len(self._told))).permutation(len(listed))]

    def _ask_for(self, configuration: Configuration) -> Configuration:
        """A configuration of our own choice, on record as asked; outside the space it stands beside it."""
        if not self._space.contains(configuration):
            return configuration
        self._study.enqueue_trial(self._params(configuration))
        trial = self._study.ask()
        found = self._configuration(trial)
        self._asked[found.key] = (found, trial)
        return found

    def _configuration(self, trial: optuna.trial.Trial) -> Configuration:
        """Suggest what the conditions switch on, in the space's order (a drafter before its k)."""
        chosen: dict[str, Scalar] = {}
        for knob in self._space.knobs:
            if knob.active(chosen):
                chosen[knob.name] = _suggest(trial, knob)
        return self._space.complete(chosen)

    def _params(self, configuration: Configuration) -> dict[str, Any]:
        values = configuration.values
        return {
            knob.parameter: values[knob.name]
            for knob in self._space.knobs
            if knob.name in values and knob.active(values)
        }

    def _add(
        self, configuration: Configuration, values: Sequence[float] | None, constraints: Mapping[str, float]
    ) -> None:
        self._told[configuration.key] = (configuration, values, constraints)
        if not self._space.contains(configuration):
            return  # measured outside this space (an incumbent): it stays in the table, not in the model
        params = self._params(configuration)
        distributions = {knob.parameter: _distribution(knob) for knob in self._space.knobs}
        bad = {} if values is not None else {"could_not_run": 1.0}
        self._study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions={name: distributions[name] for name in params},
                values=list(values) if values is not None else None,
                state=TrialState.COMPLETE if values is not None else TrialState.PRUNED,
                constraints={**constraints, **bad} or None,
            )
        )


def _distribution(knob: Knob) -> BaseDistribution:
    if knob.choices is not None or knob.low is None or knob.high is None:
        return CategoricalDistribution(list(knob.grid()))
    if knob.whole:
        step = 1 if knob.log else int(knob.step or 1)
        return IntDistribution(int(knob.low), int(knob.high), log=knob.log, step=step)
    return FloatDistribution(float(knob.low), float(knob.high), log=knob.log, step=knob.step)


def _suggest(trial: optuna.trial.Trial, knob: Knob) -> Scalar:
    """A knob's value under the name that Optuna knows it by: each drafter has its own k."""
    shape = _distribution(knob)
    if isinstance(shape, IntDistribution):
        return int(trial.suggest_int(knob.parameter, shape.low, shape.high, step=shape.step, log=shape.log))
    if isinstance(shape, FloatDistribution):
        return float(trial.suggest_float(knob.parameter, shape.low, shape.high, step=shape.step, log=shape.log))
    chosen: Scalar = trial.suggest_categorical(knob.parameter, list(knob.grid()))
    return chosen


def _sampler(name: str, seed: int, goals: int) -> optuna.samplers.BaseSampler:
    samplers = optuna.samplers
    if name == "gp":
        if importlib.util.find_spec("torch") is None:
            raise PlanError("search.sampler: gp needs torch.", "Install torch (a CPU build will do), or use tpe.")
        return samplers.GPSampler(seed=seed, warn_independent_sampling=False)  # each drafter's k is conditional
    if name == "cmaes" and goals == 1:
        return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if name in ("random", "grid", "one_knob"):
        # grid and one_knob are queues that the caller makes; what is left of the budget is random
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(
        seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=_AT_RANDOM
    )
