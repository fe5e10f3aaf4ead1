"""Variables are named for their type or role, and methods by a verb of the field."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.sources import ROOT, named, parsed, product_files

# They name neither a type nor a role.
BANNED_NAMES = {"one", "found", "made", "held", "said", "kept", "given", "asked", "told", "got"}
# Verbs that no comparable project uses for a method; `record`, `enqueue`, `update`, `exit` say what happens.
BANNED_METHODS = {"take", "note", "follow", "leave", "hear", "tell", "say"}


def banned(source: str) -> Iterator[str]:
    """Variables, parameters, functions and methods of a module with a banned name, private ones too."""
    for node in ast.walk(parsed(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.lstrip("_") in BANNED_METHODS:
                yield name
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ) if name in BANNED_NAMES:
                yield name


def test_no_name_is_banned() -> None:
    assert [f"{named(path)}: {name}" for path in product_files() for name in banned(path.read_text())] == []


@pytest.mark.parametrize(("folder", "count_max"), [("tests", 340), ("bench", 18)])
def test_the_count_of_banned_names_of_tests_only_falls(folder: str, count_max: int) -> None:
    names = [name for path in (ROOT / folder).rglob("*.py") for name in banned(path.read_text())]
    assert len(names) <= count_max
