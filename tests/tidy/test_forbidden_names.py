"""Rejects meaningless module names and machine-specific paths."""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from tests.tidy.sources import ROOT, files_of_tests, named, product_files, text_files

EMPTY_WORDS = {"base", "common", "helper", "helpers", "misc", "util", "utils"}
README_LINES_MAX = 150
# Not after a letter or dot, which make it a part of a longer path or of a URL.
_MACHINE_PATH = re.compile(r"(?<![\w.\-~])/(work|home|root|Users)/")


def empty_names(paths: Iterable[PurePath]) -> list[str]:
    """Modules and packages with a meaningless name."""
    return [
        str(path) for path in paths if EMPTY_WORDS & {*path.parent.parts, path.stem, *path.stem.strip("_").split("_")}
    ]


def machine_paths(text: str) -> Iterator[int]:
    """Lines with a machine-specific path."""
    for number, line in enumerate(text.splitlines(), start=1):
        if _MACHINE_PATH.search(line):
            yield number


def test_module_names_contain_no_empty_words() -> None:
    assert empty_names(PurePath(named(path)) for path in [*product_files(), *files_of_tests()]) == []


def test_files_contain_no_machine_specific_path() -> None:
    results = [f"{named(path)}:{line}" for path in text_files() for line in machine_paths(path.read_text())]
    assert results == [], "\n".join(results)


def test_readme_is_within_its_line_limit() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX
