"""Variables are named for their type or role, and methods by a verb of the field."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.sources import ROOT, named, parsed

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
                | ast.ExceptHandler(name=str(name))
            ) if name in BANNED_NAMES:
                yield name


@pytest.mark.parametrize("folder", ["serving", "release", "examples", "bench", "tests"])
def test_code_uses_no_banned_name(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert [f"{named(path)}: {name}" for path in files for name in banned(path.read_text())] == []
