"""Loggers and constants stand above the first definition of their file, where a reader looks for them.

A constant that is made of what its file defines, such as a table of functions, stands below it.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.sources import ROOT, files_of_tests, named, parsed, product_files

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def late_constants(source: str) -> Iterator[tuple[int, str]]:
    """Constants below a definition that they do not need: line, and first name."""
    body = parsed(source).body
    times = [name for statement in body if not isinstance(statement, _Definition) for name in _names(statement)]
    late: set[str] = set()
    for statement in body:
        if isinstance(statement, _Definition):
            late.add(statement.name)
        elif late:
            names = _names(statement)
            is_free = not late & {*_names(statement, ast.Load), *_texts(statement)}
            if _is_constant(statement) and is_free and all(times.count(name) == 1 for name in names):
                yield statement.lineno, names[0]
            else:
                late.update(names)


def _is_constant(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is not None
    return False


def _names(statement: ast.stmt, context: type[ast.expr_context] = ast.Store) -> list[str]:
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, context)]


def _texts(statement: ast.stmt) -> list[str]:
    # An annotation may name a class in quotes.
    return [
        node.value for node in ast.walk(statement) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_constants_stand_at_the_top() -> None:
    found = [
        f"{named(path)}:{line}: move {name} above the first definition"
        for path in [*product_files(), *files_of_tests(), *sorted((ROOT / "bench").rglob("*.py"))]
        for line, name in late_constants(path.read_text())
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("_A = 1\ndef f(): ...", []),
        ("def f(): ...\n_A = 1", ["_A"]),
        ("class C: ...\n_log = logging.getLogger(__name__)", ["_log"]),
        ("def f(): ...\n_A: Final = 1\n_B = _A", ["_A", "_B"]),
        ("def f(): ...\n_A, _B = 1, 2", ["_A"]),
        ("def f(): ...\nTABLE = {'f': f}", []),
        ("def f(): ...\nTABLE = {'f': f}\nNAMES = tuple(TABLE)", []),
        ("class C: ...\nBegin = Callable[['C'], None]", []),
        ("_A = 0\ndef f(): ...\n_A = 1", []),
        ("def f(): ...\nf.calls = 0\n_A: int", []),
    ],
)
def test_the_rule_sees_a_late_constant(source: str, seen: list[str]) -> None:
    assert [name for _, name in late_constants(source)] == seen
