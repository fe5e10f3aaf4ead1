"""The words of the resource API stand in ``serving/model/knative.py`` only."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.sources import named, parsed, product_files

VOCABULARY = "serving/model/knative.py"
GROUPS = ("serving.knative.dev", "autoscaling.knative.dev", "networking.knative.dev")
# Classes that every floor reads; a second definition would be a second meaning.
SHARED = {"ConditionStatus", "ServingState", "TrafficPath"}


def second_definitions(source: str) -> Iterator[str]:
    """Literals that spell a key of a shared group, and classes with the name of a shared word."""
    tree = parsed(source)
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in SHARED:
            yield f"{node.lineno}: defines {node.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            text = node.value
            if any(text == group or text.startswith(f"{group}/") for group in GROUPS):
                yield f"{node.lineno}: spells {text}"


def test_each_word_is_defined_once() -> None:
    found = [
        f"{named(path)}:{fault}"
        for path in product_files()
        if named(path) != VOCABULARY
        for fault in second_definitions(path.read_text())
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ('KEY = "serving.knative.dev/revision"', ["1: spells serving.knative.dev/revision"]),
        ('f(x, key="autoscaling.knative.dev/target")', ["1: spells autoscaling.knative.dev/target"]),
        ('group = "serving.knative.dev"', ["1: spells serving.knative.dev"]),
        ("class ServingState: ...", ["1: defines ServingState"]),
        ('"""Reads serving.knative.dev/revision."""', []),
        ('def f():\n  """serving.knative.dev/v1 objects."""', []),
        ('fail("the API serving.knative.dev is missing")', []),
        ('KEY = f"{SERVING_GROUP}/revision"', []),
    ],
)
def test_the_rule_sees_a_second_definition(source: str, seen: list[str]) -> None:
    assert list(second_definitions(source)) == seen
