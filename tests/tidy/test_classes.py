"""Class names are unique in the tree."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.tidy.sources import named, parsed, product_files

# Name -> why two classes may share it. Empty is the goal.
SHARED_NAMES: dict[str, str] = {}


def class_names(source: str) -> Iterator[str]:
    """Names of the classes of a module, without a leading underscore."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")


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


def test_the_rule_sees_a_repeated_name() -> None:
    sources = [("a.py", "class Entry: ...\nclass Other: ..."), ("b.py", "class _Entry: ...")]
    assert repeated(sources) == {"Entry": ["a.py", "b.py"]}
