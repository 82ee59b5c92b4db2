"""Conditions over a configuration, such as `max_num_seqs > 64 and drafter == dspark`; nothing is executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .configuration import Scalar

__all__ = ["bare_words", "holds"]

_LONGEST = 500
_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class _Absent(Exception):
    """A knob that the configuration does not have: no comparison with it is met."""


def holds(text: str, values: Mapping[str, Scalar], knobs: Collection[str]) -> bool:
    """Whether the condition is met; a comparison with an absent knob is not.

    A bare word is a knob's value where it is one of `knobs`, else a text (`dspark`); `true`, `false` work.

    Raises:
        ValueError: It is no condition, or compares what cannot be compared.
    """
    try:
        return _Scope(values, knobs).truth(_tree(text))
    except (TypeError, ZeroDivisionError) as error:
        raise ValueError(f"`{text}` cannot be worked out: {error}") from error


@dataclass(frozen=True, slots=True)
class _Scope:
    """One configuration, and the names that are knobs."""

    values: Mapping[str, Scalar]
    knobs: Collection[str]

    def truth(self, node: ast.expr) -> bool:
        try:
            found = self.value(node)
        except _Absent:
            return False
        if not isinstance(found, bool):
            raise TypeError(f"{ast.unparse(node)} alone is neither true nor false")
        return found

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.BoolOp():
                # Both sides are always worked out, so that one trial of a condition finds all its mistakes.
                parts = [self.truth(part) for part in node.values]
                return all(parts) if isinstance(node.op, ast.And) else any(parts)
            case ast.UnaryOp(op=ast.Not()):
                return not self.truth(node.operand)
            case ast.UnaryOp(op=ast.USub()):
                return -self.number(node.operand)
            case ast.BinOp() if type(node.op) in _OPERATIONS:
                return _OPERATIONS[type(node.op)](self.number(node.left), self.number(node.right))
            case ast.Compare(ops=ops) if all(type(op) in _OPERATIONS for op in ops):
                return self.compare(node)
            case ast.List() | ast.Tuple():
                return [self.value(part) for part in node.elts]
            case ast.Constant(value=bool() | int() | float() | str()):
                return node.value
            case ast.Name():
                return self.word(node.id)
        raise TypeError(f"{ast.unparse(node)} has no place in a condition")

    def compare(self, node: ast.Compare) -> bool:
        try:
            sides = [self.value(side) for side in (node.left, *node.comparators)]
        except _Absent:
            return False
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        return all(_OPERATIONS[type(op)](left, right) for left, op, right in pairs)

    def number(self, node: ast.expr) -> int | float:
        found = self.value(node)
        if not isinstance(found, int | float):
            raise TypeError(f"{ast.unparse(node)} is no number")
        return found

    def word(self, name: str) -> Scalar:
        if name in self.knobs and name not in self.values:
            raise _Absent
        return self.values.get(name, {"true": True, "false": False}.get(name, name))


def bare_words(text: str) -> set[str]:
    """The words of a condition that stand without quotes. Raises ValueError where it is none."""
    words = {node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)}
    return words - {"true", "false"}


@lru_cache(maxsize=256)
def _tree(text: str) -> ast.expr:
    try:
        if len(text) <= _LONGEST:
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise ValueError(f"`{text[:_LONGEST]}` is no condition; write it like `k > 4 and drafter == dspark`")
