"""Pure modules import no clock, socket, log or metric, and no module that does; only ``main`` and ``io`` may.

import-linter holds the same rule (``pure_contract``); it does not see calls of built-in functions that touch the world.
"""

import ast
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from tests.tidy.pure_contract import PureContract
from tests.tidy.sources import files_of_tests, is_type_checking_block, named, package_of, parsed, product_files

PURE_FLOORS = {"core", "nodes/placement"}
DAEMONS = {"activator", "autoscaler", "controller", "nodes/extender", "nodes/nodegroup", "queueproxy"}
# The module and the package of a daemon that may touch the world.
SHELLS = {"main", "io"}
IO_FLOOR = "net"
# Modules of those floors that are declarations only. Decisions may import them, and they are held to the same rule.
VOCABULARY = {
    "serving.net.cluster.kinds",
    "serving.net.cluster.port",
    "serving.net.cluster.selectors",
    "serving.net.wire.frames",
}
IMPURE = {
    *(
        "asyncio",
        "concurrent",
        "datetime",
        "importlib",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "sched",
    ),
    *("secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading"),
    *("time", "uuid"),
    *("aiohttp", "kubernetes", "opencensus", "opentelemetry", "prometheus_client", "uvloop", "websockets"),
}
# A source of randomness may be named as a type; the object is handed in.
IMPURE_AS_TYPE = IMPURE - {"random"}
IMPURE_CALLS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}


def is_pure(path: PurePath) -> bool:
    """Whether a file of ``serving/`` must be pure, by its path in the project."""
    module = path.with_suffix("").parts
    package = package_of(module)
    is_decision = package in DAEMONS and SHELLS.isdisjoint(module[2:])
    return not PURE_FLOORS.isdisjoint({package, module[1]}) or is_decision or ".".join(module) in VOCABULARY


def impurities(source: str, path: PurePath) -> Iterator[str]:
    """Impure parts of a file, "line: part"."""
    tree = parsed(source)
    only_types = {
        child for block in ast.walk(tree) if isinstance(block, ast.If) and is_type_checking_block(block)
        for statement in block.body for child in ast.walk(statement)
    }  # fmt: skip
    for node in ast.walk(tree):
        impure = IMPURE_AS_TYPE if node in only_types else IMPURE
        for name in imported(node, path):
            if name.split(".")[0] in impure or is_shell_or_io(name):
                yield f"{node_line(node)}: imports {name}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{node.lineno}: calls {node.func.id}"


def imported(node: ast.AST, path: PurePath) -> list[str]:
    """Modules imported by a statement, by full name; ``from a import b`` gives a.b, which may be a module."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            package = ".".join(path.parts[:-level]) if level else ""
            origin = ".".join(part for part in (package, module) if part)
            return [f"{origin}.{alias.name}" for alias in names]
        case _:
            return []


def is_shell_or_io(name: str) -> bool:
    """Whether a module, by full name, is one of the project's with side effects."""
    if any(name == text or name.startswith(f"{text}.") for text in VOCABULARY):
        return False
    match name.split("."):
        case ["serving", floor, *rest]:
            return floor == IO_FLOOR or (package_of(name.split(".")) in DAEMONS and not SHELLS.isdisjoint(rest))
        case _:
            return False


def node_line(node: ast.AST) -> int:
    """The first line of a statement."""
    return getattr(node, "lineno", 0)


def test_pure_modules_have_no_side_effects() -> None:
    results = [
        f"{named(path)}:{fault}"
        for path in product_files()
        if is_pure(PurePath(named(path)))
        for fault in impurities(path.read_text(), PurePath(named(path)))
    ]
    assert results == [], "\n".join(results)


@pytest.mark.parametrize(
    ("path", "pure"),
    [
        ("serving/core/model/stat.py", True),
        ("serving/core/traffic/main.py", True),
        ("serving/autoscaler/decide.py", True),
        ("serving/autoscaler/triggers/cpu.py", True),
        ("serving/autoscaler/io/decision_loop.py", False),
        ("serving/queueproxy/io/requests.py", False),
        ("serving/activator/io/prober.py", False),
        ("serving/tools/cli/main.py", False),
        ("serving/net/proxy/pool.py", False),
        ("serving/net/cluster/kinds.py", True),
        ("serving/net/cluster/kube.py", False),
    ],
)
def test_pure_files_are_classified_by_path(path: str, pure: bool) -> None:
    assert is_pure(PurePath(path)) is pure


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("import time", ["1: imports time"]),
        ("import os.path as p", ["1: imports os.path"]),
        ("from datetime import datetime", ["1: imports datetime.datetime"]),
        ("def f():\n  import logging", ["2: imports logging"]),
        ("try:\n  import uvloop\nexcept ImportError: ...", ["2: imports uvloop"]),
        ("import random", ["1: imports random"]),
        ("if TYPE_CHECKING:\n  import random", []),
        ("if typing.TYPE_CHECKING:\n  from random import Random", []),
        ("if TYPE_CHECKING:\n  import asyncio", ["2: imports asyncio"]),
        ("if TYPE_CHECKING:\n  ...\nelse:\n  import random", ["4: imports random"]),
        ("if DEBUG:\n  import random", ["2: imports random"]),
        ("from serving.autoscaler import io", ["1: imports serving.autoscaler.io"]),
        ("from serving.autoscaler.io.loop import run", ["1: imports serving.autoscaler.io.loop.run"]),
        ("from . import io", ["1: imports serving.autoscaler.io"]),
        ("from .io.client import fetch", ["1: imports serving.autoscaler.io.client.fetch"]),
        ("from ..autoscaler.main import run", ["1: imports serving.autoscaler.main.run"]),
        ("from serving.net.aio import clock", ["1: imports serving.net.aio.clock"]),
        ("import serving.net.wire", ["1: imports serving.net.wire"]),
        ("from serving.net.cluster import kinds, kube", ["1: imports serving.net.cluster.kube"]),
        ("from serving.net.cluster.port import Patch", []),
        ("from serving.net.cluster.portal import Patch", ["1: imports serving.net.cluster.portal.Patch"]),
        ("print(1)", ["1: calls print"]),
        ("x = open('a').read()", ["1: calls open"]),
        ("import math, msgspec\nfrom serving.autoscaler.kpa import decide\nfrom serving.core.model import stat", []),
        ("from serving.autoscaler import looping", []),
        ("breaker.open()", []),
    ],
)
def test_rule_detects_impure_imports_and_calls(source: str, seen: list[str]) -> None:
    assert list(impurities(source, PurePath("serving/autoscaler/decide.py"))) == seen


class _Graph:
    """The imports of a tree as import-linter hands them over."""

    def __init__(self, imports: dict[str, set[str]]) -> None:
        self.modules = set(imports)
        self._imports = imports

    def find_modules_directly_imported_by(self, module: str) -> set[str]:
        return self._imports[module]


@pytest.mark.parametrize(
    ("module", "imported", "is_kept"),
    [
        ("serving.autoscaler.decide", "serving.core.model.stat", True),
        ("serving.autoscaler.decide", "asyncio", False),
        ("serving.autoscaler.decide", "serving.autoscaler.io.writer", False),
        ("serving.autoscaler.io.writer", "asyncio", True),
        ("serving.autoscaler.main", "asyncio", True),
        ("serving.net.proxy.server", "asyncio", True),
    ],
)
def test_contract_detects_an_impure_import(module: str, imported: str, is_kept: bool) -> None:
    options = {"packages": ["serving.autoscaler"], "shells": ["main", "io"], "forbidden": ["asyncio"]}
    contract = PureContract(name="pure", session_options={}, contract_options=options)
    assert contract.check(_Graph({module: {imported}}), False).kept is is_kept


def sleeps(source: str) -> Iterator[int]:
    """Lines that call a function named ``sleep``."""
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep")):
                yield node.lineno


def test_unit_tests_do_not_sleep() -> None:
    """``tests/eventually.py`` waits for conditions, ``tests/virtual_time.py`` lets time pass that costs none."""
    results = [
        f"{named(path)}:{line}"
        for path in files_of_tests()
        if named(path).startswith("tests/unit/")
        for line in sleeps(path.read_text())
    ]
    assert results == [], "\n".join(results)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("await asyncio.sleep(0)", [1]),
        ("time.sleep(1)", [1]),
        ("from time import sleep\nsleep(1)", [2]),
        ("await pass_s(3)", []),
        ("command = ['sleep', '1']", []),
    ],
)
def test_rule_detects_a_sleep(source: str, seen: list[int]) -> None:
    assert list(sleeps(source)) == seen
