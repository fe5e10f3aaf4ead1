import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from serving.core.model.errors import NotLeading
from serving.net.aio.supervise import SupervisedTasks, TaskCancelled, TaskOwner, supervise, task_of
from tests.eventually import until
from tests.virtual_time import pass_s, run_virtually


async def forever() -> None:
    await asyncio.Event().wait()


async def turn() -> None:
    """Let the loop run once."""
    run = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(run.set_result, None)
    await run


async def fail(error: Exception) -> None:
    await turn()
    raise error


async def test_task_failure_ends_block_and_is_raised_unchanged() -> None:
    ended: list[str] = []

    async def other() -> None:
        try:
            await forever()
        finally:
            ended.append("other")

    async def block() -> None:
        async with supervise() as tasks:
            tasks.start_background(other(), name="other")
            tasks.start_background(fail(error), name="watch of nodes")
            await forever()

    error = NotLeading("ns/lease")
    with pytest.raises(NotLeading) as caught:
        await block()
    assert caught.value is error
    assert task_of(error) == "watch of nodes"
    assert ended == ["other"]


async def test_outer_block_reports_name_of_failed_inner_task() -> None:
    async def part() -> None:
        async with supervise() as tasks:
            tasks.start(fail(ZeroDivisionError()), name="inner")

    with pytest.raises(ZeroDivisionError) as caught:
        async with supervise() as tasks:
            tasks.start(part(), name="outer")
    assert task_of(caught.value) == "inner"


async def test_first_failure_is_raised_and_later_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_at_the_end() -> None:
        try:
            await forever()
        finally:
            raise ValueError("second")

    async def block() -> None:
        async with supervise() as tasks:
            tasks.start(fail_at_the_end(), name="late")
            tasks.start(fail(ZeroDivisionError()), name="early")

    with pytest.raises(ZeroDivisionError):
        await block()
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["task"], vars(record)["error"]) == (
        "task.failed",
        "late",
        "ValueError: second",
    )


async def test_error_of_block_is_raised_unchanged_and_cancels_tasks() -> None:
    started: list[asyncio.Task[None]] = []

    async def block() -> None:
        async with supervise() as tasks:
            started.append(tasks.start(forever(), name="watch"))
            raise NotLeading("ns/lease")

    with pytest.raises(NotLeading):
        await block()
    assert started[0].cancelled()


async def test_block_end_awaits_tasks_and_cancels_background_tasks() -> None:
    finished, cancelled = [], []

    async def work() -> str:
        await turn()
        finished.append("work")
        return "result"

    async def watch() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            await turn()
            cancelled.append("watch")
            raise

    async with supervise() as tasks:
        task = tasks.start(work(), name="work")
        tasks.start_background(watch(), name="watch")
        await turn()
    assert (finished, cancelled, task.result()) == (["work"], ["watch"], "result")


async def test_task_can_be_cancelled_through_its_handle() -> None:
    async with supervise() as tasks:
        task = tasks.start(forever(), name="watch")
        await turn()
        task.cancel()
    assert task.cancelled()


@pytest.mark.parametrize("is_last", [True, False])
async def test_task_that_awaits_cancelled_future_fails(is_last: bool) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await future

    async def block() -> None:
        async with supervise() as tasks:
            tasks.start(wait(), name="connect")
            asyncio.get_running_loop().call_soon(future.cancel)
            if not is_last:
                await forever()

    with pytest.raises(TaskCancelled) as caught:
        await block()
    assert task_of(caught.value) == "connect"


async def test_cancelled_block_cancels_its_tasks() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def block() -> None:
        async with supervise() as owner:
            tasks.append(owner.start(forever(), name="watch"))
            await forever()

    async with supervise() as outer:
        running = outer.start(block(), name="block")
        await until(lambda: bool(tasks))
        running.cancel()
    assert tasks[0].cancelled()


def test_failed_task_restarts_with_backoff_and_logged_reason(caplog: pytest.LogCaptureFixture) -> None:
    begun_s: list[float] = []

    async def watch() -> None:
        begun_s.append(asyncio.get_running_loop().time())
        if len(begun_s) == 4:
            # It is healthy for a minute: pauses begin again.
            await pass_s(60)
        if len(begun_s) == 6:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.cancel)
            await future
        if len(begun_s) == 7:
            return
        raise OSError("no route")

    async def main() -> None:
        async with supervise() as tasks:
            await tasks.keep_running(watch, name="loop lag")

    run_virtually(main())
    pauses_s = [round(later - before, 3) for before, later in itertools.pairwise(begun_s)]
    assert pauses_s == [0.1, 0.2, 0.4, 60.1, 0.2, 0.4]
    reasons = [
        (record.getMessage(), vars(record)["task"], vars(record)["error"])
        for record in caplog.records
        if record.levelname == "ERROR"
    ]
    assert reasons[0] == ("task.restarts", "loop lag", "OSError: no route")
    assert reasons[-1] == ("task.restarts", "loop lag", "what it waited for was cancelled")
    assert len(reasons) == 6


async def test_restarted_task_is_cancelled_at_block_end() -> None:
    begun = asyncio.Event()

    async def watch() -> None:
        begun.set()
        await forever()

    async with supervise() as tasks:
        task = tasks.keep_running(watch, name="watch")
        await begun.wait()
    assert task.cancelled()


async def test_task_owner_logs_unawaited_failures_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    async with TaskOwner() as tasks:
        tasks.start(fail(ZeroDivisionError("by 0")), name="connect 1")
        awaited = tasks.start(fail(OSError("refused")), name="connect 2", is_awaited=True)
        with contextlib.suppress(OSError):
            await awaited
        await until(lambda: not len(tasks))
    (record,) = caplog.records
    assert (vars(record)["task"], vars(record)["error"]) == ("connect 1", "ZeroDivisionError: by 0")


async def test_task_owner_cancels_and_awaits_its_tasks() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await forever()
        finally:
            await turn()
            ended.append("slow")

    tasks = TaskOwner()
    first = tasks.start(slow(), name="slow")
    await turn()
    tasks.cancel()
    assert not first.done()
    await tasks.close()
    assert ended == ["slow"]
    assert len(tasks) == 0


@pytest.mark.parametrize("start", [SupervisedTasks.start, SupervisedTasks.start_background])
async def test_ended_block_starts_no_task(start: Callable[..., object]) -> None:
    async with supervise() as tasks:
        pass
    work: Coroutine[Any, Any, None] = forever()
    with pytest.raises(RuntimeError):
        start(tasks, work, name="late")
    work.close()
