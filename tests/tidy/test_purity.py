"""Who decides imports no clock, no socket, no log, no metric, and no module of its daemon that does.

import-linter holds the same line between packages; it does not see an import of ``loop`` by ``decide`` inside one, nor
what a local import or a built-in function does.
"""

import ast
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from tests.tidy.sources import is_type_checking_block, named, parsed, product_files

PURE_FLOORS = {"model", "settings", "traffic", "scheduler", "scaling"}
DAEMONS = {"activator", "autoscaler", "controller", "nodegroup", "placement", "queueproxy"}
# The only modules of a daemon that may touch the world; the file's name says so.
SHELLS = {"main", "server", "loop", "client"}
# Each daemon's package of what touches sockets, clocks and clusters.
IO_FOLDER = "io"
IO_FLOORS = {"aio", "cluster", "metrics", "proxy", "wire"}
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
    """Whether a file of ``serving/`` must be pure, by its path from the project's folder."""
    package = path.parts[1]
    return package in PURE_FLOORS or (package in DAEMONS and path.stem not in SHELLS and IO_FOLDER not in path.parts)


def impurities(source: str, path: PurePath) -> Iterator[str]:
    """What a file does that a decision must not, "line: what"."""
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
    """Modules that a statement may import, by full name; of ``from a import b`` it is a.b, which may be a module."""
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
    """Whether a module, by full name, is one of ours that touches the world."""
    match name.split("."):
        case ["serving", floor, *rest]:
            return floor in IO_FLOORS or (floor in DAEMONS and bool(rest) and rest[0] in SHELLS | {IO_FOLDER})
        case _:
            return False


def node_line(node: ast.AST) -> int:
    """The line on which a statement begins."""
    return getattr(node, "lineno", 0)


def test_decisions_touch_nothing() -> None:
    found = [
        f"{named(path)}:{fault}"
        for path in product_files()
        if is_pure(PurePath(named(path)))
        for fault in impurities(path.read_text(), PurePath(named(path)))
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("path", "pure"),
    [
        ("serving/model/stat.py", True),
        ("serving/traffic/main.py", True),
        ("serving/autoscaler/decide.py", True),
        ("serving/autoscaler/triggers/cpu.py", True),
        ("serving/autoscaler/loop.py", False),
        ("serving/queueproxy/io/requests.py", False),
        ("serving/activator/io/prober.py", False),
        ("serving/cli/main.py", False),
        ("serving/proxy/pool.py", False),
    ],
)
def test_which_files_must_be_pure(path: str, pure: bool) -> None:
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
        ("from serving.autoscaler import loop", ["1: imports serving.autoscaler.loop"]),
        ("from serving.autoscaler.loop import run", ["1: imports serving.autoscaler.loop.run"]),
        ("from . import loop", ["1: imports serving.autoscaler.loop"]),
        ("from .client import fetch", ["1: imports serving.autoscaler.client.fetch"]),
        ("from ..autoscaler.main import run", ["1: imports serving.autoscaler.main.run"]),
        ("from serving.aio import clock", ["1: imports serving.aio.clock"]),
        ("import serving.wire", ["1: imports serving.wire"]),
        ("print(1)", ["1: calls print"]),
        ("x = open('a').read()", ["1: calls open"]),
        ("import math, msgspec\nfrom serving.autoscaler.kpa import decide\nfrom serving.model import stat", []),
        ("from serving.autoscaler import looping", []),
        ("breaker.open()", []),
    ],
)
def test_the_rule_sees_what_is_impure(source: str, seen: list[str]) -> None:
    assert list(impurities(source, PurePath("serving/autoscaler/decide.py"))) == seen
