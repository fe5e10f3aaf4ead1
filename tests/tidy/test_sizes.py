"""Limits on the length of functions, and on positional parameters."""

import functools
from collections.abc import Callable, Iterator

from tests.tidy.sources import ROOT, files_of_tests, functions_of, named, parsed, product_files

FUNCTION_LINES_MAX = 70
POSITIONAL_MAX = 3
PARAMETERS_MAX = 7
# Collaborators are constructor arguments, so a constructor may have more.
CONSTRUCTOR_PARAMETERS_MAX = 12
BENCH_LINES_MAX = 8000

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
        parameters_max = CONSTRUCTOR_PARAMETERS_MAX if function.name == "__init__" else PARAMETERS_MAX
        if positional_count + len(arguments.kwonlyargs) > parameters_max:
            yield name, f"more than {parameters_max} parameters: make them a record"


@functools.cache
def faults(rules: tuple[Rule, ...]) -> list[tuple[str, str]]:
    """All faults of the product's functions: "path: function", and the fault."""
    return [
        (f"{named(path)}: {name}", fault)
        for path in product_files()
        for rule in rules
        for name, fault in rule(path.read_text())
    ]


def test_functions_are_within_their_size_and_parameter_limits() -> None:
    results = faults((long_functions, crowded_functions))
    assert results == [], "\n".join(f"{place}: {fault}" for place, fault in results)


def test_functions_of_tests_are_within_their_size_limit() -> None:
    results = [f"{named(path)}: {name}" for path in files_of_tests() for name, _ in long_functions(path.read_text())]
    assert results == []


def test_bench_is_within_its_line_limit() -> None:
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / "bench").rglob("*.py")) <= BENCH_LINES_MAX
