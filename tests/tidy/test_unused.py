"""Every public name is used by the product or a benchmark; uses by a test or ``__all__`` do not count."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.tidy.sources import ROOT, named, parsed, product_files

# "module: name" -> who uses it where this check cannot see it.
USED_ELSEWHERE: dict[str, str] = {
    "serving/activator/io/jwtkeys.py: http_open": "urllib calls it",
    "serving/activator/io/jwtkeys.py: https_open": "urllib calls it",
    "serving/tools/cli/main.py: format_commands": "click calls it",
    "serving/tools/cli/client/stats.py: redirect_request": "urllib calls it",
    "serving/home/containers/nameserver.py: datagram_received": "asyncio calls it",
    "serving/home/containers/nameserver.py: error_received": "asyncio calls it",
    "serving/home/containers/network.py: remove_leftovers": "the supervisor runs it in an interpreter of its own",
    "serving/tools/cli/services/token.py: revoke": "click calls it",
    "serving/tools/cli/system/service.py: install_service": "the table of commands names it",
    "serving/tools/samples/hello.py: do_GET": "http.server calls it",
    "serving/core/scaling/decision/policy.py: algorithm_count": "policies of users call it",
    "serving/core/model/scaledworkload.py: to_object": "serving adopt will write it",
}
_ENTRY_POINTS = {"main"}


def public_definitions(source: str) -> Iterator[str]:
    """Public functions, classes and constants of a module, and public methods and properties of its classes."""
    for statement in parsed(source).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
        if isinstance(statement, ast.ClassDef):
            for child in statement.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield child.name


def uses(source: str) -> Counter[str]:
    """How often a file reads each name: as a variable, an attribute, an import's target, or a keyword of a call."""
    counts: Counter[str] = Counter()
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                counts[name] += 1
            case ast.keyword(arg=str(name)):
                counts[name] += 1
            case ast.Constant(value=str(text)) if text.isidentifier():
                # getattr, forward references in annotations, tables of names; __all__ is taken out below.
                counts[text] += 1
    for name in exported(source):
        counts[name] -= 1
    return counts


def exported(source: str) -> list[str]:
    """The names in ``__all__``."""
    for statement in parsed(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return [str(ast.literal_eval(element)) for element in getattr(statement.value, "elts", [])]
    return []


def unused(sources: Iterable[tuple[str, str]], users: Iterable[str]) -> list[str]:
    """Public names of the sources that no user reads, "module: name"."""
    total: Counter[str] = Counter()
    for text in users:
        total.update(uses(text))
    return [
        f"{path}: {name}"
        for path, text in sources
        for name in public_definitions(text)
        if not name.startswith("_") and name not in _ENTRY_POINTS and total[name] <= 0
    ]


def test_every_public_name_is_used() -> None:
    product = [(named(path), path.read_text()) for path in product_files()]
    benchmarks = [path.read_text() for path in sorted((ROOT / "bench").rglob("*.py"))]
    # The runner of conformance cases is shipped for others to run.
    runner = [path.read_text() for path in sorted((ROOT / "tests/conformance").rglob("*.py"))]
    unuseds = unused(product, [*(text for _, text in product), *benchmarks, *runner])
    remaining = [text for text in unuseds if text not in USED_ELSEWHERE]
    assert remaining == [], "\n".join(remaining)


@pytest.mark.parametrize(
    ("source", "user", "seen"),
    [
        ('__all__ = ["f"]\ndef f(): ...', "", ["m: f"]),
        ('__all__ = ["f"]\ndef f(): ...', "from m import f\nf()", []),
        ("def f(): ...\nf()", "", []),
        ("class A:\n  def g(self): ...\nA()", "", ["m: g"]),
        ("class A:\n  def g(self): ...\nA().g()", "", []),
        ("LIMIT = 3", "", ["m: LIMIT"]),
        ("def _f(): ...", "", []),
        ("def main(): ...", "", []),
    ],
)
def test_rule_detects_an_unused_name(source: str, user: str, seen: list[str]) -> None:
    assert unused([("m", source)], [source, user]) == seen
