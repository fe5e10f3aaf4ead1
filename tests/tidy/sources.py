"""The files covered by the house rules."""

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Entries below ``serving/`` that only group packages.
GROUPS = {"core", "net", "nodes", "tools"}
# Folders that tools create in a checkout.
_LEFT_BEHIND = {"__pycache__", "build", "dist", "htmlcov", "node_modules", "venv"}
_OWN_HIDDEN = {".ci", ".github", ".gitignore"}
# Suffixes of the text files to search.
_TEXT_SUFFIXES = {"", ".cfg", ".html", ".json", ".jsonl", ".md", ".py", ".sh", ".svg", ".toml", ".txt", ".yaml", ".yml"}


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a file's text. Cached, because many rules read every file; no rule changes a tree."""
    return ast.parse(source)


@functools.cache
def product_files() -> list[Path]:
    """Python files of the package."""
    return sorted((ROOT / "serving").rglob("*.py"))


def files_of_tests() -> list[Path]:
    """Python files of the tests."""
    return sorted((ROOT / "tests").rglob("*.py"))


def text_files(folder: Path = ROOT) -> Iterator[Path]:
    """All text files of a folder, without build products."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") and path.name not in _OWN_HIDDEN:
            continue
        if path.is_dir():
            if path.name not in _LEFT_BEHIND and path.suffix != ".egg-info":
                yield from text_files(path)
        elif path.suffix in _TEXT_SUFFIXES:
            yield path


def named(path: Path) -> str:
    """A file as messages name it, from the project's folder on."""
    return path.relative_to(ROOT).as_posix()


def package_of(parts: Sequence[str]) -> str:
    """The package of a module or file by its parts, the first of which is ``serving``: "activator", "core/model"."""
    return "/".join(parts[1:3] if len(parts) > 2 and parts[1] in GROUPS else parts[1:2])


def functions_of(tree: ast.AST) -> Iterator[tuple[str, Function, bool]]:
    """All functions of a file, nested ones too: qualified name, function, and whether ``self`` comes first."""
    return _functions_in(tree, inside="", in_class=False)


def _functions_in(tree: ast.AST, *, inside: str, in_class: bool) -> Iterator[tuple[str, Function, bool]]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.ClassDef | Function):
            yield from _functions_in(node, inside=inside, in_class=in_class)
            continue
        name = f"{inside}{node.name}"
        if isinstance(node, Function):
            yield name, node, in_class and not _is_static(node.decorator_list)
        yield from _functions_in(node, inside=f"{name}.", in_class=isinstance(node, ast.ClassDef))


def _is_static(decorators: Iterable[ast.expr]) -> bool:
    return any(isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in decorators)


def is_type_checking_block(node: ast.AST) -> bool:
    """Whether a node is an ``if TYPE_CHECKING:``, whose body never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
