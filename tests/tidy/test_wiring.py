"""Callbacks are constructor arguments.

An object that gets one later lacks its collaborator until then. Where two objects need each other, a third that owns
both passes its methods to their constructors.
"""

import ast
import functools
from collections.abc import Collection, Iterator

import pytest

from tests.tidy.sources import Function, functions_of, named, parsed, product_files

# Hooks of the standard library, which takes no constructor argument for them.
_FOREIGN_HOOKS = {"encodekey", "sni_callback", "unraisablehook"}
_CONSTRUCTORS = {"__init__", "__post_init__"}
_SETTERS = ("on_", "set_", "add_", "pull_")


def callback_names(source: str) -> Iterator[str]:
    """Attributes of a module that are declared as callables."""
    for node in ast.walk(parsed(source)):
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name) | ast.Name(id=name), annotation=annotation):
                if _is_callable(annotation):
                    yield name
            case ast.FunctionDef(name="__init__"):
                parameters = _callable_parameters(node)
                for inner in ast.walk(node):
                    match inner:
                        case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Name(id=value)):
                            if value in parameters:
                                yield name


def late_callbacks(source: str, names: Collection[str]) -> Iterator[str]:
    """Places where a callback is assigned to another object, or stored by a method.

    ``names`` are attributes for callbacks.
    """
    tree = parsed(source)
    functions = _callables(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target, value in _pairs(node):
                if _is_late(target, value, names, functions):
                    yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, Function) and node.name not in _CONSTRUCTORS:
            yield from (f"{line}: {node.name}" for line in _stores(node))


def _pairs(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[ast.expr, ast.expr]]:
    assert node.value is not None
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _is_late(target: ast.expr, value: ast.expr, names: Collection[str], functions: Collection[str]) -> bool:
    if not isinstance(target, ast.Attribute) or target.attr in _FOREIGN_HOOKS:
        return False
    if isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}:
        return False
    match value:
        case ast.Lambda() | ast.Call(func=ast.Name(id="partial") | ast.Attribute(attr="partial")):
            return True
        case ast.Name(id=local):
            return local in functions
        case _:
            return target.attr in names and isinstance(value, ast.Attribute | ast.Call)


def _callables(tree: ast.AST) -> set[str]:
    """Plain functions of a module, and parameters that are callables."""
    functions = [function for _, function, is_method in functions_of(tree) if not is_method]
    parameters = [_callable_parameters(node) for node in ast.walk(tree) if isinstance(node, Function)]
    return {function.name for function in functions}.union(*parameters)


def _stores(function: Function) -> Iterator[int]:
    """Lines of a method that store one of its parameters as a callback."""
    parameters = _callable_parameters(function)
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"))], value=ast.Name(id=name)):
                if name in parameters:
                    yield node.lineno
            case ast.Call(func=ast.Attribute(attr="append" | "add"), args=[ast.Name(id=name)]):
                if name in parameters and function.name.startswith(_SETTERS):
                    yield node.lineno


def _callable_parameters(function: Function) -> set[str]:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {
        argument.arg for argument in arguments if argument.annotation is not None and _is_callable(argument.annotation)
    }


def _is_callable(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).strip("'\"").startswith("Callable[")


@functools.cache
def _places() -> list[str]:
    names = {name for path in product_files() for name in callback_names(path.read_text())}
    return [f"{named(path)}:{place}" for path in product_files() for place in late_callbacks(path.read_text(), names)]


def test_callbacks_are_constructor_arguments() -> None:
    assert _places() == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("server.on_held = lambda: None", [1]),
        ("def f(): ...\nserver.hook = f", [2]),
        ("a.hook = functools.partial(f, 1)", [1]),
        ("self.server.on_held = ingress.record", [1]),
        ("self.end = self.loop.on_held = ingress.record", [1]),
        ("a.on_held = recorder(1)", [1]),
        ("def f(then: Callable[[], None]):\n  a.hook = then", [2]),
        ("class A:\n  def turn(self): ...\na.turn = turn", []),
        ("a.on_held, a.count = ingress.record, 1", [1]),
        ("self.on_held = ingress.record", []),
        ("a.size = b.size", []),
        ("context.sni_callback = self.choose", []),
        ("class A:\n  def on_change(self, callback: Callable[[], None]):\n    self._all.append(callback)", [3]),
        ("class A:\n  def start(self, apply: Callable[[], None]):\n    self._apply = apply", [3]),
        ("class A:\n  def __init__(self, apply: Callable[[], None]):\n    self._apply = apply", []),
        ("class A:\n  def defer(self, work: Callable[[], None]):\n    self._queue.append(work)", []),
    ],
)
def test_rule_detects_a_late_callback(source: str, lines: list[int]) -> None:
    assert [int(place.partition(":")[0]) for place in late_callbacks(source, {"on_held"})] == lines


def test_rule_recognizes_callback_attributes() -> None:
    source = (
        "class A:\n  def __init__(self, then: Callable[[], None]) -> None:\n    self._then = then\n"
        "    self.on_end: Callable[[], None] | None = None\n    self.count: int = 0"
    )
    assert sorted(callback_names(source)) == ["_then", "on_end"]
