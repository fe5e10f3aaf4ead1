"""Doubling pauses come from ``serving.core.traffic.backoff``, which bounds them: 2.0**1024 overflows."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.sources import functions_of, named, parsed, product_files

_THE_ONE = "serving/core/traffic/backoff.py"


def unbounded_doublings(source: str) -> Iterator[int]:
    """Lines of functions that raise 2 to a variable, or double one in place; capitals are constants."""
    for _, function, _ in functions_of(parsed(source)):
        for node in ast.walk(function):
            match node:
                case ast.BinOp(left=ast.Constant(value=2), op=ast.Pow(), right=power) if not _is_constant(power):
                    yield node.lineno
                case ast.AugAssign(op=ast.Mult(), value=ast.Constant(value=2)):
                    yield node.lineno


def _is_constant(power: ast.expr) -> bool:
    names = [node for node in ast.walk(power) if isinstance(node, ast.Name | ast.Attribute | ast.Call)]
    return all(isinstance(node, ast.Name) and node.id.isupper() for node in names)


def test_product_has_no_unbounded_doubling() -> None:
    results = [
        f"{name}:{line}: use backoff_s"
        for path in product_files()
        if (name := named(path)) != _THE_ONE
        for line in unbounded_doublings(path.read_text())
    ]
    assert results == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("min(0.05 * 2 ** (count - 1), 1.0)", True),
        ("2.0 ** self.count", True),
        ("2**min(count, 60)", True),
        ("2**31 - 1", False),
        ("ratio * 2**_SPAN_BITS", False),
        ("0.8**silent", False),
    ],
)
def test_rule_detects_a_power_of_a_variable(text: str, seen: bool) -> None:
    assert bool(list(unbounded_doublings(f"def f():\n    return {text}"))) is seen
