"""Tasks are started by their owners, in ``serving.net.aio.supervise`` alone: a task without an owner ends unnoticed."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.sources import named, parsed, product_files

_OWNERS = "serving/net/aio/supervise.py"
_FORBIDDEN = {"create_task", "ensure_future", "TaskGroup"}


def naked_tasks(source: str) -> Iterator[str]:
    """Uses of functions that start tasks, as "line: name"."""
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in _FORBIDDEN:
                yield f"{node.lineno}: {name}"
            case ast.ImportFrom(module="asyncio", names=names):
                yield from (f"{node.lineno}: {alias.name}" for alias in names if alias.name in _FORBIDDEN)


def test_product_starts_no_task_without_an_owner() -> None:
    uses = [
        f"{name}:{use}: use supervise() or TaskOwner of serving.net.aio.supervise"
        for path in product_files()
        if (name := named(path)) != _OWNERS
        for use in naked_tasks(path.read_text())
    ]
    assert uses == []


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("asyncio.create_task(work())", ["1: create_task"]),
        ("loop.create_task(work())", ["1: create_task"]),
        ("asyncio.ensure_future(work())", ["1: ensure_future"]),
        ("async def f():\n  async with asyncio.TaskGroup() as group: ...", ["2: TaskGroup"]),
        ("from asyncio import create_task", ["1: create_task"]),
        ("tasks.start(work(), name='work')", []),
    ],
)
def test_rule_detects_a_task_without_an_owner(source: str, uses: list[str]) -> None:
    assert list(naked_tasks(source)) == uses
