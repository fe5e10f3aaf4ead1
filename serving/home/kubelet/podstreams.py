"""Serves logs, exec, attach and port-forward of this machine's pods to the API server."""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from serving.core.model.errors import NotFound
from serving.core.model.knative import QUEUE_PROXY
from serving.home.apiserver.channels import STDOUT
from serving.home.apiserver.logoptions import LogOptions, StoredLog
from serving.home.apiserver.podstreams import ExecOptions, ExecSession
from serving.home.kubelet.container import ContainerKeeper
from serving.home.kubelet.kubelet import Kubelet
from serving.home.kubelet.pod import PodRun
from serving.home.kubelet.stdio import ContainerInput, Stdio
from serving.home.pods.locations import QUEUE_PORTS
from serving.home.pods.podfolder import previous_of, rotated_of
from serving.home.pods.podlogs import timed_lines
from serving.home.processes.processruntime import TemplateProcess
from serving.net.aio.clock import micro_stamp, wall_s
from serving.net.aio.cooperative import turn
from serving.net.aio.supervise import TaskOwner

_PIECE_BYTES = 65536
# Lines read before other tasks run.
_LINES_AT_ONCE = 500
# Longest delay of new lines for a follower, in seconds.
_FOLLOW_S = 0.2

_SIGNAL_EXIT = 128
# Time for a command to end after its client has disconnected, in seconds.
_GRACE_S = 1.0
# A follower reads a log five times a second, so within this time it has read a process's last output.
_LAST_WORDS_S = 1.0


class FilePodLogs:
    """Reads logs below one folder: NAMESPACE/POD/CONTAINER.log, and CONTAINER.previous.log of the previous run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stored(self, namespace: str) -> list[StoredLog]:
        """The pods of a namespace that have logs, the most recently written first."""
        logs = [_stored_log(folder) for folder in (self._folder / namespace).glob("*")]
        return sorted((log for log in logs if log.containers), key=lambda log: log.written_s, reverse=True)

    async def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Yield pieces of a container's log. ``follow`` continues with the next run after a restart.

        Raises:
            NotFound: when there is no such log.
        """
        path = self._folder / namespace / pod / f"{options.container}.log"
        # A pod deleted before its next start only has its previous run's log.
        if options.previous or (not path.exists() and options.is_by_time):
            path = previous_of(path)
        if not path.is_file():
            run = "previous run" if options.previous else "log"
            raise NotFound(f"no {run} of container {options.container} in pod {pod}")
        remaining = options.limit_bytes
        async for piece in _timed(path, options) if options.is_by_time else _pieces(path, options):
            yield piece if remaining is None else piece[:remaining]
            if remaining is not None and (remaining := remaining - len(piece)) <= 0:
                return


def _stored_log(folder: Path) -> StoredLog:
    """The logs in a pod's folder: the containers with a log of the current or previous run, and the last write."""
    names, written_s = set(), 0.0
    for log in folder.glob("*.log"):
        names.add(log.name.removesuffix(".log").removesuffix(".previous"))
        with contextlib.suppress(FileNotFoundError):
            written_s = max(written_s, log.stat().st_mtime)
    return StoredLog(pod=folder.name, containers=sorted(names), written_s=written_s)


async def _timed(path: Path, options: LogOptions) -> AsyncIterator[bytes]:
    """Yield the lines of a log since the requested time, including those of its rotated copies.

    Each line begins with its timestamp if requested. With ``follow``, new lines are yielded as they are written.
    """
    since_s, end, line = options.from_s(wall_s=wall_s()), 0, b""
    buffered: deque[bytes] = deque(maxlen=options.tail_line_count)
    for log in (*rotated_of(path), path):
        end, line = 0, b""
        for at_s, end, line in timed_lines(log, since_s):  # noqa: B007 - the end of the last line
            buffered.append(_stamped(line, options, at_s=at_s))
            if options.tail_line_count is None and len(buffered) == _LINES_AT_ONCE:
                yield b"".join(buffered)
                buffered.clear()
                await turn()
    is_followed = options.follow and not options.previous
    if is_followed and line and not line.endswith(b"\n"):
        # The rest of the line follows.
        buffered.pop()
        end -= len(line)
    yield b"".join(buffered)
    if not is_followed:
        return
    rest = b""
    async for piece in _pieces(path, msgspec.structs.replace(options, tail_line_count=None), start=end):
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield b"".join(_stamped(line + b"\n", options, at_s=wall_s()) for line in lines)
    if rest:
        yield _stamped(rest, options, at_s=wall_s())


def _stamped(line: bytes, options: LogOptions, *, at_s: float) -> bytes:
    """A line, with its timestamp if requested."""
    return micro_stamp(at_s).encode() + b" " + line if options.timestamps else line


async def _pieces(path: Path, options: LogOptions, *, start: int = 0) -> AsyncIterator[bytes]:
    file: BinaryIO = path.open("rb")
    try:
        file.seek(start)
        if options.tail_line_count is not None:
            lines = file.read().splitlines(keepends=True)
            yield b"".join(lines[max(0, len(lines) - options.tail_line_count) :])
        while True:
            piece = file.read(_PIECE_BYTES)
            if piece:
                yield piece
            elif not options.follow or options.previous:
                return
            else:
                now_at = _now_at(path, file)
                if now_at is None:
                    return
                if now_at is not file:
                    file.close()
                    file = now_at
                    continue
                if file.tell() > os.fstat(file.fileno()).st_size:
                    # The log was rotated: read from its beginning.
                    file.seek(0)
                await asyncio.sleep(_FOLLOW_S)
    finally:
        file.close()


def _now_at(path: Path, file: BinaryIO) -> BinaryIO | None:
    """The file to read on from: ``file``, the newly opened log of the next run, or None if the pod was deleted."""
    own = os.fstat(file.fileno()).st_ino
    try:
        return file if path.stat().st_ino == own else path.open("rb")
    except FileNotFoundError:
        pass
    try:
        # Renamed a moment ago; the next run has not begun.
        return file if previous_of(path).stat().st_ino == own else None
    except FileNotFoundError:
        return None


def keeper_of(pod: PodRun, container: str) -> ContainerKeeper:
    """The ``ContainerKeeper`` that runs a container. Raises ``NotFound`` if the container was not started."""
    keeper = pod.keepers.get(container)
    if keeper is None:
        raise NotFound(f"container {container} of pod {pod.key[1]} does not run")
    return keeper


async def connect_to(pod: PodRun, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of the pod: a declared one, one on which an app listens, or one of the queue-proxy.

    Raises:
        OSError: when no process of the pod listens there.
    """
    if pod.kind is None:
        raise ConnectionRefusedError("the pod has not started")
    if port in QUEUE_PORTS:
        return await asyncio.open_connection(pod.location.address, port)
    return await pod.kind.connect(port, [session for name, session in pod.sessions.items() if name != QUEUE_PROXY])


class LocalPodStreams:
    """Opens streams into the pods of one kubelet."""

    def __init__(self, kubelet: Kubelet, logs: FilePodLogs) -> None:
        self._kubelet = kubelet
        self._logs = logs

    async def execute(self, namespace: str, pod: str, options: ExecOptions) -> ExecSession:
        """Run a command in a container."""
        run = self._kubelet.find(namespace, pod)
        keeper = keeper_of(run, options.container)
        await run.sleep.wake()
        stdio = Stdio(has_stdin=options.has_stdin, has_terminal=options.has_terminal, streams=options.streams)
        try:
            process = keeper.execute(options.command, stdio)
            await process.started
        except BaseException:
            stdio.close()
            raise
        stdio.release()
        run.sleep.inhibit_sleep(process.ended)
        return _Executed(process, stdio)

    async def attach(self, namespace: str, pod: str, options: ExecOptions) -> ExecSession:
        """Follow a container's output from now on, and write to its input if its manifest sets ``stdin``."""
        run = self._kubelet.find(namespace, pod)
        process = keeper_of(run, options.container).running_process()
        await run.sleep.wake()
        run.sleep.inhibit_sleep(process.ended)
        follow = LogOptions(container=options.container, follow=True, tail_line_count=0)
        container_input = run.inputs.get(options.container) if options.has_stdin else None
        return _Attached(process, self._logs.read(namespace, pod, follow), container_input)

    async def connect(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of a pod."""
        run = self._kubelet.find(namespace, pod)
        if port not in QUEUE_PORTS:
            await run.sleep.wake()
        reader, writer = await connect_to(run, port)
        if port not in QUEUE_PORTS:
            run.sleep.inhibit_sleep(writer.wait_closed())
        return reader, writer


class _Executed:
    def __init__(self, process: TemplateProcess, stdio: Stdio) -> None:
        self._process = process
        self._stdio = stdio
        self.output = stdio.output
        self.write = stdio.write
        self.end_input = stdio.end_input
        self.resize = stdio.resize

    async def exit_code(self) -> int:
        code = await asyncio.shield(self._process.ended)
        return code if code >= 0 else _SIGNAL_EXIT - code

    async def close(self) -> None:
        if not self._process.ended.done():
            await self._process.end(grace_s=_GRACE_S)
        self._stdio.close()


class _Attached:
    def __init__(self, process: TemplateProcess, lines: AsyncIterator[bytes], stdin: ContainerInput | None) -> None:
        self._process = process
        self._lines = lines
        self._stdin = stdin
        self._writer = None if stdin is None else stdin.attach()

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the lines that the container logs from now on, until its process has ended."""
        ended = self._process.ended
        async with TaskOwner() as tasks:
            following = tasks.start(self._next(), name="attach", is_awaited=True)
            while True:
                has_ended = ended.done()
                waited: set[asyncio.Future[Any]] = {following} if has_ended else {ended, following}
                timeout_s = _LAST_WORDS_S if has_ended else None
                await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    if (piece := following.result()) is None:
                        return
                    if piece:
                        yield STDOUT, piece
                    following = tasks.start(self._next(), name="attach", is_awaited=True)
                elif has_ended:
                    return

    async def _next(self) -> bytes | None:
        return await anext(self._lines, None)

    async def write(self, data: bytes) -> None:
        if self._writer is not None:
            await self._writer.write(data)

    def end_input(self) -> None:
        if self._writer is not None and self._stdin is not None:
            self._writer.close()
            self._stdin.detach()
            self._writer = None

    def resize(self, *, columns: int, rows: int) -> None:
        """Do nothing: there is no terminal."""

    async def exit_code(self) -> int:
        return 0

    async def close(self) -> None:
        self.end_input()
        with contextlib.suppress(AttributeError):
            await self._lines.aclose()  # type: ignore[attr-defined] # it is a generator
