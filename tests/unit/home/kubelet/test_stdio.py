"""Streams of a command, on asyncio and on uvloop, which the control process uses."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from serving.home.apiserver.channels import STDOUT
from serving.home.kubelet.stdio import Stdio, WaitingDescriptor
from tests.eventually import until


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    param: Callable[[Coroutine[Any, Any, None]], None] = request.param
    return param


def test_closed_descriptor_ends_its_read_and_its_number_can_be_reused(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def check() -> None:
        reading, writing = os.pipe()
        closed = WaitingDescriptor(reading)
        waiting = asyncio.create_task(closed.read())
        await until(lambda: closed._waits)
        closed.close()
        assert await asyncio.wait_for(waiting, 60) == b""
        os.close(writing)
        again, writing = os.pipe()
        assert again == reading
        following = WaitingDescriptor(again)
        waiting = asyncio.create_task(following.read())
        await until(lambda: following._waits)
        os.write(writing, b"next")
        assert await asyncio.wait_for(waiting, 60) == b"next"
        following.close()
        following.close()
        os.close(writing)

    run(check())


def test_failed_output_read_raises_its_error() -> None:
    async def check() -> None:
        stdio = Stdio(has_stdin=False, has_terminal=False, streams=[STDOUT])

        async def fail() -> bytes:
            raise RuntimeError("the loop does not follow it")

        stdio._output[STDOUT].read = fail  # type: ignore[method-assign]
        try:
            with pytest.raises(RuntimeError, match="does not follow it"):
                await asyncio.wait_for(anext(stdio.output()), 60)
        finally:
            stdio.close()

    asyncio.run(check())
