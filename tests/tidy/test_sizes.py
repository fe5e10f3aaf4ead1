"""Limits on the length of files and functions, and on positional parameters."""

import functools
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping

import pytest

from tests.tidy.sources import files_of_tests, functions_of, named, parsed, product_files

SOURCE_LINES_MAX = 400
# Rooms, not shelves: below it, files are merged (tests/tidy/test_house.py).
SOURCE_LINES_MEDIAN_MAX = 170
# Files that may be longer, up to LONG_LINES_MAX, and why.
LONG_FILES = {
    "serving/proxy/http2/engine.py": "one connection is one object: cut by inheritance, its state was spread over four files",
}
LONG_LINES_MAX = 700
TEST_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
POSITIONAL_MAX = 3
PARAMETERS_MAX = 7

# "path: function" -> why this one may. Empty is how it should be.
EXCEPTIONS: dict[str, str] = {}

Rule = Callable[[str], Iterator[tuple[str, str]]]


def long_functions(source: str) -> Iterator[tuple[str, str]]:
    """Functions with too many lines: name and fault."""
    for name, function, _ in functions_of(parsed(source)):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield name, f"{length} lines, {FUNCTION_LINES_MAX} are allowed"


def crowded_functions(source: str) -> Iterator[tuple[str, str]]:
    """Functions with too many parameters, ``self`` apart: name and fault."""
    for name, function, is_method in functions_of(parsed(source)):
        arguments = function.args
        positional_count = len(arguments.posonlyargs) + len(arguments.args) - is_method
        if positional_count > POSITIONAL_MAX:
            yield (
                function.name,
                f"{positional_count} positional parameters; those after {POSITIONAL_MAX} are keyword-only",
            )
        if positional_count + len(arguments.kwonlyargs) > PARAMETERS_MAX:
            yield name, f"more than {PARAMETERS_MAX} parameters: make them a record"


@functools.cache
def faults(rules: tuple[Rule, ...]) -> list[tuple[str, str]]:
    """All faults of the product's functions: "path: function", and the fault."""
    return [
        (f"{named(path)}: {name}", fault)
        for path in product_files()
        for rule in rules
        for name, fault in rule(path.read_text())
    ]


def unneeded(exceptions: Collection[str], found: Collection[tuple[str, str]]) -> list[str]:
    """Exceptions without a fault."""
    return sorted(set(exceptions) - {place for place, _ in found})


def too_long(lines_by_file: Mapping[str, int], lines_max: int) -> list[str]:
    """Files with more lines than allowed."""
    return [
        f"{name}: {count} lines, {lines_max} are allowed" for name, count in lines_by_file.items() if count > lines_max
    ]


def line_counts(*, of_tests: bool) -> dict[str, int]:
    """Lines of each file that is not empty."""
    files = files_of_tests() if of_tests else product_files()
    counts = {named(path): len(path.read_text().splitlines()) for path in files}
    return {name: count for name, count in counts.items() if count}


def test_source_files_are_short() -> None:
    counts = line_counts(of_tests=False)
    assert too_long({name: count for name, count in counts.items() if name not in LONG_FILES}, SOURCE_LINES_MAX) == []
    assert too_long({name: counts[name] for name in LONG_FILES}, LONG_LINES_MAX) == []
    assert [name for name in LONG_FILES if counts[name] <= SOURCE_LINES_MAX] == []


def test_half_of_the_source_files_are_very_short() -> None:
    assert statistics.median(line_counts(of_tests=False).values()) <= SOURCE_LINES_MEDIAN_MAX


def test_test_files_are_short() -> None:
    assert too_long(line_counts(of_tests=True), TEST_LINES_MAX) == []


def test_functions_are_short_and_take_little_by_position() -> None:
    found = faults((long_functions, crowded_functions))
    left = [f"{place}: {fault}" for place, fault in found if place not in EXCEPTIONS]
    assert left == [], "\n".join(left)


def test_functions_of_tests_are_short() -> None:
    found = [f"{named(path)}: {name}" for path in files_of_tests() for name, _ in long_functions(path.read_text())]
    assert found == []


def test_every_exception_is_still_needed() -> None:
    assert unneeded(EXCEPTIONS, faults((long_functions, crowded_functions))) == []


def test_the_rule_sees_an_exception_that_is_not_needed() -> None:
    assert unneeded(["a.py: f", "b.py: g"], [("a.py: f", "71 lines")]) == ["b.py: g"]


def test_the_rule_sees_a_long_file() -> None:
    assert too_long({"a.py": 400, "b.py": 401}, 400) == ["b.py: 401 lines, 400 are allowed"]


@pytest.mark.parametrize(("body_lines", "seen"), [(FUNCTION_LINES_MAX - 1, []), (FUNCTION_LINES_MAX, ["A.f"])])
def test_the_rule_sees_a_long_function(body_lines: int, seen: list[str]) -> None:
    source = "class A:\n  async def f():\n" + "    pass\n" * body_lines
    assert [name for name, _ in long_functions(source)] == seen


def test_a_function_is_named_with_what_it_is_inside_of() -> None:
    source = "class A:\n  if x:\n    def f(self):\n      def g(): ..."
    assert [(name, is_method) for name, _, is_method in functions_of(parsed(source))] == [
        ("A.f", True),
        ("A.f.g", False),
    ]


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("def f(a, b, c): ...", 0),
        ("def f(a, b, c, d): ...", 1),
        ("def f(a, b, /, c, d): ...", 1),
        ("def f(a, b, c, *, d): ...", 0),
        ("def f(a, b, c, *, d, e, g, h): ...", 0),
        ("def f(a, b, c, *, d, e, g, h, i): ...", 1),
        ("class A:\n  def f(self, a, b, c): ...", 0),
        ("class A:\n  def f(self, a, b, c, d): ...", 1),
        ("class A:\n  @staticmethod\n  def f(a, b, c, d): ...", 1),
        ("def outer():\n  async def f(a, b, c, d): ...", 1),
    ],
)
def test_the_rule_sees_too_many_parameters(source: str, seen: int) -> None:
    assert len(list(crowded_functions(source))) == seen
