"""Forks daemons from one process, so that they share memory.

``DaemonBase`` is the supervisor's side. ``main`` is the base:
``python -m serving.home.supervisor.daemonbase MODULE...``. The base has no loop, no thread and no descriptor of a
daemon; each request contains the descriptors of one daemon. It forks twice, so that the supervisor adopts the daemon.
The base runs only while the system starts or reloads. A daemon that is restarted later, or without a base, is executed.

Standard library only: the supervisor uses it.
"""

import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from serving.home.processes.process_lifetime import die_with_parent, show_as
from serving.net.aio.startup import READY_VARIABLE, exit_on_signals

_MODULE = "serving.home.supervisor.daemonbase"
# Longest wait for a fork of the base, in seconds: importing takes tens of seconds on an overloaded machine.
_FORK_S = 30.0
_REQUEST_BYTES_MAX = 2**17
_REPLY_BYTES_MAX = 32
_DESCRIPTORS_MAX = 253
_ADOPTION_PAUSE_S = 0.0001
# Sizes of CPython's allocator of small objects. The first objects of a new pool are adjacent.
_SMALLEST_BYTES, _SMALL_BYTES_MAX, _SIZE_STEP_BYTES = 48, 512, 16
_POOL_BYTES, _POOL_HEAD_BYTES_MAX = 2**14, 64
_ROW_OF_NEW_POOL = 3
# With another allocator the loop below would not end.
_GAPS_MAX = 20_000
# Variables of the base only: numpy starts no threads, and there is space to show a daemon's environment.
_OWN_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "SERVING_BASE_ROOM": "-" * 2**14}

_kept: list[bytes] = []


class DaemonLaunch(NamedTuple):
    """One daemon to start: its module, and the environment variables to add.

    ``sockets`` are the descriptors of its listening sockets by name. ``log_fd`` is the descriptor of its log, and
    ``ready_fd`` that of the pipe in which it reports readiness.
    """

    module: str
    environment: Mapping[str, str]
    sockets: Mapping[str, int]
    log_fd: int
    ready_fd: int


class DaemonBase:
    """The process from which daemons are forked, as a context manager. It imports ``modules`` before the first fork."""

    def __init__(self, modules: Iterable[str], *, environment: Mapping[str, str]) -> None:
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_FORK_S)
        with its:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", _MODULE, *modules],
                env={**os.environ, **environment, **_OWN_VARIABLES},
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one thread, by design
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()

    def start(self, launch: DaemonLaunch) -> int:
        """Fork a daemon; if the base has ended or cannot fork, start a new interpreter. Return the process id."""
        request = json.dumps([launch.module, dict(launch.environment), list(launch.sockets)]).encode()
        try:
            socket.send_fds(self._control, [request], [launch.log_fd, launch.ready_fd, *launch.sockets.values()])
            return int(self._control.recv(_REPLY_BYTES_MAX))
        except (OSError, ValueError):
            # It is late, or cannot import a module, which the daemon itself reports. A fork that finds this closed
            # ends.
            self._control.close()
            return execute(launch)


def execute(launch: DaemonLaunch) -> int:
    """Start a daemon in a new interpreter; return its process id."""
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", launch.module],
        env={**os.environ, **_environment(launch)},
        stdin=subprocess.DEVNULL,
        stdout=launch.log_fd,
        stderr=launch.log_fd,
        pass_fds=[*launch.sockets.values(), launch.ready_fd],
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one thread, by design
    )
    # The supervisor reaps it, with the processes of pods.
    process.returncode = 0
    return process.pid


def main() -> int:
    """Import the modules, then fork daemons until the supervisor closes the socket at standard input.

    Return the exit code.
    """
    owner, modules = os.getppid(), sys.argv[1:]
    control = socket.socket(fileno=os.dup(0))
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    for name in _OWN_VARIABLES:
        del os.environ[name]
    # All daemons share the existing objects, as long as no garbage collection writes to them.
    gc.collect()
    gc.freeze()
    _kept.extend(fill_pools())
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        # Another thread may hold a lock, which no thread of a fork would release.
        return 1
    while True:
        request, descriptors, _, _ = socket.recv_fds(
            control, _REQUEST_BYTES_MAX, _DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
        )
        if not request:
            return 0
        child = os.fork()
        if child == 0:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            return _be_daemon(request, descriptors, control, owner=owner, middle=middle)
        if os.waitpid(child, 0)[1]:
            # The supervisor notices by the end of this process that nothing was forked.
            return 1
        for descriptor in descriptors:
            os.close(descriptor)


def fill_pools() -> list[bytes]:
    """Fill the gaps in Python's memory before daemons are forked; return the fillers, which must stay referenced.

    Python stores a new object in the gap of a freed object of the same size (Objects/obmalloc.c). In a forked daemon,
    such a write makes a private copy of the memory page. Without gaps, daemons use new pages, and share more of the old
    ones.
    """
    fillers = []
    for size in range(_SMALLEST_BYTES, _SMALL_BYTES_MAX + 1, _SIZE_STEP_BYTES):
        row_count = last = 0
        for _ in range(_GAPS_MAX):
            filler = bytes(size - sys.getsizeof(b""))
            fillers.append(filler)
            is_first = id(filler) % _POOL_BYTES < _POOL_HEAD_BYTES_MAX
            row_count = 1 if is_first else row_count + 1 if row_count and id(filler) == last + size else 0
            last = id(filler)
            if row_count == _ROW_OF_NEW_POOL:
                break
    return fillers


def _be_daemon(request: bytes, descriptors: Sequence[int], control: socket.socket, *, owner: int, middle: int) -> int:
    """Run as a daemon in a newly forked process; return the exit code.

    ``request`` and ``descriptors`` describe the daemon. ``control`` is the socket for reporting its process id.
    ``owner`` is the supervisor's process id. ``middle`` is the id of the parent, which exits, so that the supervisor
    adopts the daemon.
    """
    os.setsid()
    while os.getppid() == middle:
        time.sleep(_ADOPTION_PAUSE_S)
    die_with_parent()
    if os.getppid() != owner:
        os._exit(1)
    exit_on_signals()
    log_fd, ready_fd, *sockets = descriptors
    module, environment, names = json.loads(request)
    environment = {
        **os.environ,
        **_environment(DaemonLaunch(module, environment, dict(zip(names, sockets, strict=True)), log_fd, ready_fd)),
    }
    # Cleared first, so that no variable points into the memory that is overwritten.
    os.environ.clear()
    os.environ.update(environment)
    show_as([sys.executable, "-m", module], environment)
    sys.argv = [module]
    with Path(os.devnull).open("rb") as nothing:
        for target, source in enumerate((nothing.fileno(), log_fd, log_fd)):
            os.dup2(source, target)
    os.close(log_fd)
    control.send(str(os.getpid()).encode())
    control.close()
    gc.enable()
    code: int = importlib.import_module(module).main()
    return code


def _environment(launch: DaemonLaunch) -> dict[str, str]:
    """A daemon's environment variables."""
    return {
        **launch.environment,
        "SERVING_LISTEN_FDS": json.dumps(dict(launch.sockets)),
        READY_VARIABLE: str(launch.ready_fd),
    }


if __name__ == "__main__":
    sys.exit(main())
