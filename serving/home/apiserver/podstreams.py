"""The port to running pods: exec, attach and port-forward. The kubelet implements it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

import msgspec
from multidict import MultiMapping

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object, nested
from serving.home.apiserver.channels import STDERR, STDOUT
from serving.home.apiserver.logoptions import chosen_container
from serving.home.apiserver.requests import Fault, is_set


class ExecOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command and streams of an exec session. Without a command, the session attaches to the container.

    ``streams`` are the requested output channels: 1 for standard output, 2 for standard error.
    """

    container: str
    command: tuple[str, ...] = ()
    has_stdin: bool = False
    has_terminal: bool = False
    streams: frozenset[int] = frozenset({STDOUT, STDERR})


class ExecSession(Protocol):
    """A running command, or an attached container."""

    def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield output as it arrives, each piece with its channel, until the session ends."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to standard input; if it is missing or closed, do nothing."""
        ...

    def end_input(self) -> None:
        """Close the standard input."""
        ...

    def resize(self, *, columns: int, rows: int) -> None:
        """Resize the terminal, if there is one."""
        ...

    async def exit_code(self) -> int:
        """Wait for the command and return its exit code; 0 for an attached container."""
        ...

    async def close(self) -> None:
        """Kill the command if it is running, and release all resources."""
        ...


class PodStreams(Protocol):
    """Opens streams into pods. All methods raise ``NotFound`` if the pod or container is not running."""

    async def execute(self, namespace: str, pod: str, options: ExecOptions) -> ExecSession:
        """Run a command in a container. Raises ``OSError`` if it cannot be started."""
        ...

    async def attach(self, namespace: str, pod: str, options: ExecOptions) -> ExecSession:
        """Attach to a running container."""
        ...

    async def connect(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of the pod. Raises ``OSError``."""
        ...


def exec_options(pod: Object, query: MultiMapping[str], *, subresource: str) -> ExecOptions:
    """Read the options of an exec or attach request. Raises ``Fault`` 400."""
    wanted = {channel for channel, name in ((STDOUT, "stdout"), (STDERR, "stderr")) if is_set(query, name)}
    command = tuple(query.getall("command", [])) if subresource == "exec" else ()
    if subresource == "exec" and not command:
        raise Fault(400, "you must specify at least one command for the container")
    if not wanted and not is_set(query, "stdin"):
        raise Fault(400, "you must specify at least 1 of stdin, stdout, stderr")
    return ExecOptions(
        container=chosen_container(pod, query.get("container", ""), with_proxy=False),
        command=command,
        has_stdin=is_set(query, "stdin"),
        has_terminal=is_set(query, "tty"),
        streams=frozenset(wanted),
    )


async def begun(pod: Object, begin: Callable[[], Awaitable[ExecSession]], container: str) -> ExecSession:
    """Begin a session. Raises ``NotFound`` with the reason if the container is not running."""
    try:
        return await begin()
    except NotFound as error:
        statuses = [
            status
            for field in ("containerStatuses", "initContainerStatuses")
            for status in nested(pod, "status", field) or ()
            if status.get("name") == container
        ]
        waiting = nested(statuses, 0, "state", "waiting") or {}
        why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
        if not why:
            raise
        raise NotFound(f"{error}: {why}") from error
