"""Class names are unique in the tree, and no class has too many methods."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from tests.tidy.sources import named, parsed, product_files

METHODS_MAX = 20
# Classes that may have more, and why.
CROWDED = {
    "serving/proxy/http2/engine.py: Http2Engine": "one connection is one object (see LONG_FILES in test_sizes.py)"
}
# Name -> why two classes may share it. Empty is the goal.
SHARED_NAMES: dict[str, str] = {}


def class_names(source: str) -> Iterator[str]:
    """Names of the classes of a module, without a leading underscore."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")


def crowded_classes(source: str) -> Iterator[tuple[str, int]]:
    """Classes with more methods than allowed, except protocols."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef) and not _is_protocol(node):
            count = sum(isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body)
            if count > METHODS_MAX:
                yield node.name, count


def _is_protocol(node: ast.ClassDef) -> bool:
    names = [ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases]
    return any(name == "Protocol" or name.endswith("Protocol") for name in names)


def repeated(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Class names that several modules define, with those modules."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, source in sources:
        for name in class_names(source):
            places[name].append(path)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def test_no_two_classes_share_a_name() -> None:
    found = repeated((named(path), path.read_text()) for path in product_files())
    left = [f"{name}: {', '.join(paths)}" for name, paths in found.items() if name not in SHARED_NAMES]
    assert left == [], "\n".join(left)


def test_every_shared_name_is_still_shared() -> None:
    found = repeated((named(path), path.read_text()) for path in product_files())
    assert sorted(SHARED_NAMES.keys() - found.keys()) == []


def test_no_class_has_too_many_methods() -> None:
    found = [
        f"{named(path)}: {name} has {count} methods, {METHODS_MAX} are allowed"
        for path in product_files()
        for name, count in crowded_classes(path.read_text())
        if f"{named(path)}: {name}" not in CROWDED
    ]
    assert found == [], "\n".join(found)


def test_the_rule_sees_a_repeated_name() -> None:
    sources = [("a.py", "class Entry: ...\nclass Other: ..."), ("b.py", "class _Entry: ...")]
    assert repeated(sources) == {"Entry": ["a.py", "b.py"]}


@pytest.mark.parametrize(("bases", "seen"), [("", [("A", 21)]), ("(Protocol)", []), ("(typing.Protocol[T])", [])])
def test_the_rule_sees_a_crowded_class(bases: str, seen: list[tuple[str, int]]) -> None:
    methods = "\n".join(f"  def f{number}(self): ..." for number in range(METHODS_MAX + 1))
    assert list(crowded_classes(f"class A{bases}:\n{methods}")) == seen
