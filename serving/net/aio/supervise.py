"""Owners of all asyncio tasks: no task fails unnoticed, and none outlives its owner.

``supervise`` is for tasks that run as long as a daemon or one of its parts. A failed task ends the block and so the
daemon, whose log names the task. ``keep_running`` instead restarts a failed task after a pause; it is for work that the
daemon's main function does not need. ``TaskOwner`` is for short-lived tasks, such as those of a connection: a failure
is logged, and the owner continues.

A task that is cancelled through its handle has not failed. A task that ends because something it awaited was cancelled
has failed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from serving.core.traffic.backoff import backoff_s
from serving.net.aio.clock import now_s

_T = TypeVar("_T")

_log = logging.getLogger("tasks")

_RESTART_FIRST_S = 0.1
_RESTART_MAX_S = 10.0
# A task that ran this long before it failed is restarted after the first pause again, in seconds.
_HEALTHY_AFTER_S = 60.0
_NOTE = "in the task: "


def supervise() -> "SupervisedTasks":
    """The owner of a block's tasks, for ``async with``."""
    return SupervisedTasks()


class TaskCancelled(RuntimeError):
    """A task ended because a future that it awaited was cancelled."""


class SupervisedTasks:
    """Runs tasks within a block. The first failure cancels the block and all tasks, and is raised unchanged.

    At the end of the block, background tasks are cancelled, and all tasks are awaited.
    """

    __slots__ = ("_background", "_group", "_interrupted")

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._background: set[asyncio.Task[Any]] = set()
        self._interrupted: list[TaskCancelled] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._background:
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            failures = _leaves(group)
        else:
            failures = list(self._interrupted)
        if not failures:
            return
        for later in failures[1:]:
            _log_failure(later)
        # Outside of the handler, so that the error keeps its own cause, or none.
        raise failures[0]

    def start(self, work: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
        """Start a task that the block awaits at its end. Its failure ends the block."""
        task = self._group.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def start_background(self, work: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
        """Start a task that is cancelled at the end of the block. Its failure ends the block."""
        task = self.start(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def keep_running(self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Start a background task; when it fails, log the reason and restart it after a pause."""
        return self.start_background(_run_forever(work, name), name=name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            if (error := task.exception()) is not None:
                _add_task_name(error, task.get_name())
        elif not task.cancelling():
            error = TaskCancelled("what the task waited for was cancelled")
            _add_task_name(error, task.get_name())
            failing = _failing(error)
            try:
                self._group.create_task(failing)
            except RuntimeError:
                # The block is already ending, and raises the error.
                failing.close()
                self._interrupted.append(error)


class TaskOwner:
    """Owns short-lived tasks, and logs failures. As a context manager, it cancels and awaits its tasks on exit."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self, work: Coroutine[Any, Any, _T], *, name: str, is_awaited: bool = False) -> asyncio.Task[_T]:
        """Start a task. ``is_awaited``: the caller reads the task's result, so a failure is not logged here."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard if is_awaited else self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all tasks without awaiting them."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _add_task_name(error, task.get_name())
            _log_failure(error)


async def _run_forever(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    failed_count = 0
    while True:
        begun_s = now_s()
        try:
            await work()
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            reason = "what it waited for was cancelled"
        except Exception as error:  # noqa: BLE001 - the outermost frame of the task
            reason = f"{type(error).__name__}: {error}"
            _log.debug("task.failure", exc_info=error)
        else:
            return
        failed_count = 1 if now_s() - begun_s >= _HEALTHY_AFTER_S else failed_count + 1
        pause_s = backoff_s(failed_count, first_s=_RESTART_FIRST_S, max_s=_RESTART_MAX_S)
        _log.error("task.restarts", extra={"task": name, "error": reason, "pause_s": pause_s})
        await asyncio.sleep(pause_s)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


def task_of(error: BaseException) -> str:
    """The name of the task that raised an error; "" if unknown."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    return notes[0].removeprefix(_NOTE) if notes else ""


def _add_task_name(error: BaseException, name: str) -> None:
    """Store the name of the failed task, because the error passes through tasks of outer blocks too."""
    if not task_of(error):
        error.add_note(f"{_NOTE}{name}")


def _log_failure(error: BaseException) -> None:
    extra = {"task": task_of(error), "error": f"{type(error).__name__}: {error}"}
    _log.error("task.failed", extra=extra, exc_info=error)


async def _failing(error: Exception) -> None:
    raise error


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group in order, including those of nested groups."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves
