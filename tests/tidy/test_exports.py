"""Every module has a docstring; only ``serving`` itself lists its names in ``__all__``; inner ``__init__.py`` are empty."""

import ast
import re
from collections.abc import Iterator

from tests.tidy.sources import ROOT, named, parsed, product_files


def docstring_faults(source: str) -> Iterator[str]:
    """The fault of a module's docstring."""
    if not (ast.get_docstring(parsed(source)) or "").strip():
        yield "no docstring"


def test_modules_have_docstrings() -> None:
    texts = {named(path): path.read_text() for path in product_files()}
    results = [f"{name}: {fault}" for name, text in texts.items() if text for fault in docstring_faults(text)]
    assert results == [], "\n".join(results)


def test_only_the_top_package_has_dunder_all() -> None:
    """Names without an underscore are public: a second list of them becomes stale."""
    inner = [path for path in product_files() if path != ROOT / "serving" / "__init__.py"]
    assert [named(path) for path in inner if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)] == []


def test_inner_packages_have_empty_init_files() -> None:
    inner = [path for path in product_files() if path.name == "__init__.py" and path.parent != ROOT / "serving"]
    assert [named(path) for path in inner if path.read_text()] == []


def test_packages_have_init_files() -> None:
    folders = {path.parent for path in product_files()}
    assert [named(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
