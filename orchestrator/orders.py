"""From a configuration to the order that starts its engine: flags, environment, place and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces.configuration import Configuration, Scalar
from search_spaces.serve_args import serve_args, serve_flags
from search_spaces.space import SearchSpace

from .engine_environment import EngineEnvironment, serve_command
from .environment_recipe import default_arguments
from .slot import LaunchOrder

__all__ = ["Launchpad", "shown_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launchpad:
    """All that an order takes from its study; what is left is the configuration, the trial and the launch."""

    environment: EngineEnvironment
    space: SearchSpace
    model: str
    serve: Mapping[str, object]
    env: Mapping[str, str]
    bfloat16: bool
    logs: Path
    run_id: str
    start_timeout_s: Callable[[], float]
    isolate: bool = False

    def arguments(self, configuration: Configuration) -> tuple[list[str], dict[str, str]]:
        """Flags after `vllm serve MODEL`, and variables, of one configuration on this engine."""
        args, env = serve_args(configuration, serve=self.serve, space=self.space)
        flags = {argument.split("=", 1)[0] for argument in args if argument.startswith("--")}
        defaults = default_arguments(self.environment.flavour, flags, bfloat16=self.bfloat16)
        return [*args, *defaults], {**self.env, **env}

    def order(self, configuration: Configuration, trial_id: str, launch: int) -> LaunchOrder:
        args, env = self.arguments(configuration)
        return LaunchOrder(
            environment=self.environment,
            model=self.model,
            args=tuple(args),
            env=env,
            run_dir=self.logs / trial_id / f"launch-{launch}",
            run_id=self.run_id,
            trial_id=trial_id,
            launch=launch,
            start_timeout_s=self.start_timeout_s(),
            drafter=configuration.drafter,
            settings=self._settings(configuration),
            prefix_caching=self._prefix_caching(configuration),
            isolate=self.isolate,
        )

    def _settings(self, configuration: Configuration) -> dict[str, str]:
        """By the flag's own name, as the engine has it too: a knob may have any other."""
        flags, _ = serve_flags(configuration, serve=self.serve, space=self.space)
        plain = {flag: value for flag, value in flags.items() if isinstance(value, bool | int | float | str)}
        return {flag[2:].replace("-", "_"): str(value) for flag, value in plain.items()}

    def _prefix_caching(self, configuration: Configuration) -> bool | None:
        """As asked for; None where the engine's own default decides."""
        asked = {**self.serve, **configuration.values}.get("enable_prefix_caching")
        return asked if isinstance(asked, bool) else None


def shown_command(pad: Launchpad, values: Mapping[str, Scalar] | Configuration) -> list[str]:
    """The command as the slot will run it, but for host and port."""
    configuration = values if isinstance(values, Configuration) else Configuration(values=dict(values))
    args, _ = pad.arguments(configuration)
    return [*serve_command(pad.environment), pad.model, *args]
