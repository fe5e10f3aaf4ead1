"""Variables are named for their type or role, and methods by a verb of the field.

The counts may only fall: lower a folder's limit in the same change that renames its variables.
"""

import ast
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.tidy.sources import ROOT, named, package_of, parsed, product_files

# They name neither a type nor a role.
BANNED_NAMES = {"one", "found", "made", "held", "said", "kept", "given", "asked", "told"}
# Verbs that no comparable project uses for a method; `record`, `enqueue`, `update`, `exit` say what happens.
BANNED_METHODS = {"take", "note", "follow", "leave", "hear", "tell", "say"}
# Variables and parameters with a banned name, by package below `serving/`. A package that is absent has none.
NAMES_MAX = {
    "core/scaling": 1,
}
METHODS_MAX = 56


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


def counts_by_folder() -> Counter[str]:
    """Banned names of variables and parameters, by folder below ``serving/``."""
    counts: Counter[str] = Counter()
    for path in product_files():
        counts[package_of(named(path).split("/"))] += sum(1 for _ in banned_names(path.read_text()))
    return counts


def test_variables_are_named_for_their_type_or_role() -> None:
    over = {folder: count for folder, count in counts_by_folder().items() if count > NAMES_MAX.get(folder, 0)}
    assert over == {}


def test_methods_are_verbs_of_the_field() -> None:
    assert sum(1 for path in product_files() for _ in banned_methods(path.read_text())) <= METHODS_MAX


def test_limits_name_folders_that_exist() -> None:
    assert [folder for folder in NAMES_MAX if not (ROOT / "serving" / folder).exists()] == []


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
