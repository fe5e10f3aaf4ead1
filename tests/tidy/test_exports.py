"""Every module says in its docstring what it is and in ``__all__`` what it offers; inner ``__init__.py`` are empty."""

import ast
import re
from collections.abc import Iterator, Sequence

import pytest

from tests.tidy.sources import ROOT, named, parsed, product_files


def docstring_faults(source: str) -> Iterator[str]:
    """What is wrong with a module's docstring."""
    if not (ast.get_docstring(parsed(source)) or "").strip():
        yield "no docstring"


def export_faults(source: str) -> Iterator[str]:
    """What is wrong with a module's ``__all__``."""
    tree = parsed(source)
    exported = exported_names(tree)
    if exported is None:
        yield "no __all__, or not a plain list of texts"
        return
    defined = set(top_level_names(tree.body))
    for name in exported:
        if name not in defined:
            yield f"{name} is exported and does not exist"
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = statement.name
            if not name.startswith("_") and name not in exported:
                yield f"{name} is public and not exported"
    if exported != sorted(set(exported), key=place_of):
        yield "__all__ is not sorted, or names something twice"


def exported_names(tree: ast.Module) -> list[str] | None:
    """The names in ``__all__``; None if there is none or it is not a list of texts."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements))
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List(elts=elements))
            ):
                names = [element.value for element in elements if isinstance(element, ast.Constant)]
                texts = [name for name in names if isinstance(name, str)]
                return texts if len(texts) == len(elements) else None
    return None


def top_level_names(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """All names that a module binds, also under ``if`` and ``try``."""
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.split(".")[0] for alias in aliases)
            case ast.Assign(targets=targets):
                yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
            case ast.If(body=body, orelse=other) | ast.Try(body=body, orelse=other):
                yield from top_level_names([*body, *other])


def place_of(name: str) -> tuple[int, list[tuple[int, str]]]:
    """The order of names: constants, classes, the others; numbers inside by value. It is ruff's."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    parts = re.split(r"(\d+)", name)
    return kind, [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def test_modules_say_what_they_are() -> None:
    texts = {named(path): path.read_text() for path in product_files()}
    found = [f"{name}: {fault}" for name, text in texts.items() if text for fault in docstring_faults(text)]
    assert found == [], "\n".join(found)


def test_modules_say_what_they_offer() -> None:
    # A __main__.py is run, not imported: it offers nothing.
    texts = {named(path): path.read_text() for path in product_files() if path.name != "__main__.py"}
    found = [f"{name}: {fault}" for name, text in texts.items() if text for fault in export_faults(text)]
    assert found == [], "\n".join(found)


def test_inner_packages_have_empty_init_files() -> None:
    inner = [path for path in product_files() if path.name == "__init__.py" and path.parent != ROOT / "serving"]
    assert [named(path) for path in inner if path.read_text()] == []


def test_packages_have_init_files() -> None:
    folders = {path.parent for path in product_files()}
    assert [named(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("source", "seen"),
    [('"""D."""\n1', []), ("1", ["no docstring"]), ('"""  """', ["no docstring"]), ("# Comment.", ["no docstring"])],
)
def test_the_rule_sees_a_missing_docstring(source: str, seen: list[str]) -> None:
    assert list(docstring_faults(source)) == seen


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ('__all__ = ["f"]\ndef f(): ...', []),
        ("__all__ = []\ndef _f(): ...", []),
        ('__all__ = ["A"]\nfrom b import A', []),
        ('__all__ = ["b"]\nimport b.c', []),
        ('__all__ = ["X", "y"]\nX, y = 1, 2', []),
        ('__all__ = ["x"]\nx: int = 1', []),
        ('__all__ = ["x"]\nif A:\n  x = 1', []),
        ('__all__ = ["BIG", "Class", "a2", "a10"]\nBIG = Class = a10 = a2 = 1', []),
        ("__all__: list[str] = []", []),
        ("import a", ["no __all__, or not a plain list of texts"]),
        ('__all__ = ["f", 1]', ["no __all__, or not a plain list of texts"]),
        ('__all__ = ["f"]', ["f is exported and does not exist"]),
        ('__all__ = ["x"]\nx: int', ["x is exported and does not exist"]),
        ("__all__ = []\nasync def f(): ...", ["f is public and not exported"]),
        ("__all__ = []\nclass A: ...", ["A is public and not exported"]),
        ('__all__ = ["b", "a"]\na = b = 1', ["__all__ is not sorted, or names something twice"]),
        ('__all__ = ["a", "B"]\na = B = 1', ["__all__ is not sorted, or names something twice"]),
        ('__all__ = ["a", "a"]\na = 1', ["__all__ is not sorted, or names something twice"]),
    ],
)
def test_the_rule_sees_a_wrong_list(source: str, seen: list[str]) -> None:
    assert list(export_faults(source)) == seen
