"""Starting and ending processes of pods: own sessions, clean descriptors, output to files, death with their parent."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.local.podplan import AppPlan

__all__ = ["end", "free_port", "start_app", "start_queue_proxy", "tail"]

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 2048
_TAIL_LINES = 10
# Loaded here, not after the fork: between fork and exec only what is safe may run.
_LIBC = ctypes.CDLL(None, use_errno=True)


def free_port() -> int:
    """A port of 127.0.0.1 and of all addresses that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


async def start_app(plan: AppPlan, *, folder: Path, log: Path) -> asyncio.subprocess.Process:
    """Execute a container's command. Raises ``OSError`` when it cannot be executed."""
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *plan.arguments,
            env=plan.environment,
            cwd=plan.folder or folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


async def start_queue_proxy(
    environment: Mapping[str, str], *, descriptors: Sequence[int], log: Path
) -> asyncio.subprocess.Process:
    """Start a pod's queue-proxy with these open descriptors."""
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "serving.queueproxy.main",
            env={
                **environment,
                "PATH": os.environ.get("PATH", ""),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=tuple(descriptors),
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


async def end(process: asyncio.subprocess.Process, *, grace_s: float) -> None:
    """SIGTERM to the whole session, then SIGKILL to what is left of it after the grace."""
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        pass
    _signal(process, signal.SIGKILL)
    await process.wait()


def tail(log: Path) -> str:
    """The last lines of a log, for messages."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
