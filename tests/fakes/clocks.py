"""Both clocks of a machine, set by hand."""

from __future__ import annotations

__all__ = ["Clocks"]


class Clocks:
    """`wall` is what people see, `steady` what runs on whatever is done to it."""

    def __init__(self, wall: float = 1.76e9) -> None:
        self.wall, self.steady = wall, 50.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def sleep(self, seconds: float) -> None:
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        self.wall, self.steady = self.wall + seconds, self.steady + seconds
