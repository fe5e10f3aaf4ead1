"""Variables are named for their type or role, and methods by a verb of the field."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.sources import named, parsed, product_files

# They name neither a type nor a role.
BANNED_NAMES = {"one", "found", "made", "held", "said", "kept", "given", "asked", "told"}
# Verbs that no comparable project uses for a method; `record`, `enqueue`, `update`, `exit` say what happens.
BANNED_METHODS = {"take", "note", "follow", "leave", "hear", "tell", "say"}
# May only fall: lower it in the change that renames methods.
METHODS_MAX = 25


def banned_names(source: str) -> Iterator[str]:
    """Variables and parameters of a module with a banned name."""
    for node in ast.walk(parsed(source)):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ) if name in BANNED_NAMES:
                yield name


def banned_methods(source: str) -> Iterator[str]:
    """Functions and methods of a module with a banned name, private ones too."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_") in BANNED_METHODS:
            yield node.name


def test_variables_are_named_for_their_type_or_role() -> None:
    banned = {named(path): [*banned_names(path.read_text())] for path in product_files()}
    assert {path: names for path, names in banned.items() if names} == {}


def test_methods_are_verbs_of_the_field() -> None:
    assert sum(1 for path in product_files() for _ in banned_methods(path.read_text())) <= METHODS_MAX


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("for one in routes: ...", ["one"]),
        ("found = self._pods.get(name)", ["found"]),
        ("def f(*, told): ...", ["told"]),
        ("match x:\n  case [made, *kept]: ...", ["kept", "made"]),
        ("self.made = route = x.found", []),
        ("f(given=1)", []),
    ],
)
def test_the_rule_sees_a_banned_name(source: str, names: list[str]) -> None:
    assert sorted(banned_names(source)) == names


@pytest.mark.parametrize(
    ("source", "names"),
    [("class A:\n  def take(self): ...\n  def _note(self): ...\n  def takeover(self): ...", ["take", "_note"])],
)
def test_the_rule_sees_a_banned_method(source: str, names: list[str]) -> None:
    assert list(banned_methods(source)) == names
