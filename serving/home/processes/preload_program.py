"""The warm process of one revision: imports an app's modules, then forks a process per pod.

The app's interpreter runs this program, so it imports only the standard library. It reads orders from a socket, one
JSON object per line: first the import, then forks. It answers the import with ``ready`` or ``refused`` and the reason,
and each fork with the record of the process. It ends when the socket closes.

The process is confined before it imports the app (``confine``); a pod keeps these layers, and adds further ones.

While no order arrives, one process is forked ahead and waits for the next order, because a fork of a large process
takes milliseconds.

A forked process behaves like an executed one: it has a separate session, environment, folder, log, signals and random
numbers. The supervisor is its parent (``spawn``). The command then runs as under ``python``, with its modules already
imported.
"""

# Few imports, because many processes are forked from this one.
# ruff: noqa: PTH100, PTH109, PTH115, PTH119, PTH120, PTH123, PTH208

import ast
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_PR_SET_NAME, _PR_SET_PDEATHSIG = 15, 1
_CLONE_NEWUTS, _MS_BIND = 0x04000000, 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
_START_TIME_FIELD = 19
_PIECE_BYTES = 65536
# Time without an order before a process is forked ahead, in seconds: the last forked pod is ready and needs no core.
_QUIET_S = 0.15
# Variables that differ between pods: code that reads them at import would keep this process's values.
_OF_A_POD = frozenset({"PORT", "HOSTNAME"})
# Descriptors that a fork would share with this process.
_UNSHARED = ("socket:", "anon_inode:[eventpoll]", "anon_inode:[io_uring]", "pipe:")
# Modules that servers import at run time, and frameworks at their first request.
_LATE = {
    "uvicorn": (
        *("uvicorn.main", "uvicorn.lifespan.on", "uvicorn.loops.auto", "uvicorn.loops.asyncio"),
        *("uvicorn.protocols.http.auto", "uvicorn.protocols.http.h11_impl", "uvicorn.protocols.websockets.auto"),
        *("uvicorn.logging", "uvicorn.middleware.proxy_headers", "uvicorn.server", "encodings.idna"),
    ),
    "gunicorn": ("gunicorn.app.wsgiapp", "gunicorn.workers.sync", "gunicorn.workers.gthread", "gunicorn.glogging"),
    "hypercorn": ("hypercorn.__main__", "hypercorn.asyncio.run", "hypercorn.protocol.h11"),
    "waitress": ("waitress.runner", "waitress.server", "waitress.task", "waitress.channel"),
    "anyio": ("anyio._backends._asyncio", "anyio.streams.memory", "encodings.idna"),
    "fastapi": ("fastapi.telemetry._runtime",),
    "flask": ("flask.cli", "werkzeug.serving", "werkzeug.debug"),
    "django": ("django.core.management", "django.core.handlers.wsgi", "django.core.handlers.asgi"),
}


_Confine = Callable[[dict[str, Any], str], list[str]]


class _RefusedError(Exception):
    """The app cannot be forked; the text is the reason."""


def main(descriptor: int) -> None:
    """Import an app, then fork a process for each order that arrives at the socket ``descriptor``.

    In each forked process, return when its command has ended.
    """
    control = socket.socket(fileno=descriptor)
    own = {os.readlink(f"/proc/self/fd/{descriptor}")}
    try:
        line, _ = _received(control)
        first = json.loads(line)
        isolation = runpy.run_path(first["confine"])
        confine = isolation["confine"]
        _use_names(first["hostname"].encode(), first["hosts"].encode(), isolation["own_mounts"])
        _confined(first, confine)
        # A new user namespace or user clears that signal. A pod sets it once its first parent has ended.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _prepare(first, own)
    except _RefusedError as error:
        _send_reply(control, {"refused": str(error)})
        return
    gc.collect()
    gc.freeze()
    _send_reply(control, {"ready": True})
    ahead: ForkedPod | None = None
    while True:
        if ahead is None and not select.select([control], [], [], _QUIET_S)[0]:
            ahead = _forked(control, confine)
            if ahead is None:
                return
        line, descriptors = _received(control)
        if not line:
            return
        reply = ahead.ordered(line, descriptors) if ahead else None
        if reply is None:
            ahead = _forked(control, confine)
            if ahead is None:
                return
            reply = ahead.ordered(line, descriptors)
        ahead = None
        for received in descriptors:
            os.close(received)
        _send_reply(control, reply or {"failed": "the forked process exited before it became the pod"})


def _received(control: socket.socket) -> "tuple[bytes, list[int]]":
    """Read one line with its attached descriptors; b"" at the end of the stream."""
    line, all_descriptors = b"", []
    while not line.endswith(b"\n"):
        piece, descriptors, *_ = socket.recv_fds(control, _PIECE_BYTES, 1)
        all_descriptors += descriptors
        if not piece:
            return b"", all_descriptors
        line += piece
    return line, all_descriptors


def _confined(order: "dict[str, Any]", confine: _Confine) -> None:
    if order["confinement"]:
        for text in confine(order["confinement"], order["folder"]):
            # On a full disk the app starts without the line.
            with contextlib.suppress(OSError):
                os.write(2, f"serving: not isolated by {text}\n".encode())


def _send_reply(control: socket.socket, reply: object) -> None:
    control.sendall(json.dumps(reply).encode() + b"\n")


def _prepare(order: dict[str, Any], own: set[str]) -> None:
    """Import everything, and check that a fork is safe afterwards."""
    reads = set()
    encode: Any = os.environ.encodekey

    def encode_and_note(key: str) -> Any:  # noqa: ANN401 - bytes, whatever the stubs say
        if key in _OF_A_POD:
            reads.add(key)
        return encode(key)

    os.environ.encodekey = encode_and_note
    arguments = order["arguments"]
    sys.argv = list(arguments)
    sys.path[0] = _first_path(arguments)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in order["modules"] or _modules_of(arguments):
        _import(name)
    for server, late in _LATE.items():
        if server in sys.modules:
            for name in late:
                # Some of them may not be installed.
                with contextlib.suppress(ImportError, AttributeError):
                    importlib.import_module(name)
    os.environ.encodekey = encode
    _check(reads, own)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:
        message = f"importing {name} fails without a pod: {type(error).__name__}: {error}"
        raise _RefusedError(message) from error


def _check(reads: set[str], own: set[str]) -> None:
    """Raise ``_RefusedError`` if a forked process would differ from an executed one.

    ``reads`` are the pod's environment variables that were read during imports. ``own`` are files that may stay open.
    """
    if reads:
        message = f"a module reads {', '.join(sorted(reads))} while it is imported, which differs from pod to pod"
        raise _RefusedError(message)
    if len(os.listdir("/proc/self/task")) > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:]) or "of a library"
        raise _RefusedError(f"a module starts threads while it is imported ({names}), which a fork does not copy")
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            is_shared = target.startswith(_UNSHARED) or (target.startswith("/") and int(name) > 2 and _is_written(name))
            if is_shared and target not in own:
                raise _RefusedError(f"a module opens {target} while it is imported, which forked processes would share")
    if _has_children():
        raise _RefusedError("a module starts a process while it is imported")


def _is_written(descriptor: str) -> bool:
    with open(f"/proc/self/fdinfo/{descriptor}") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    return bool(flags & os.O_ACCMODE)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _modules_of(arguments: list[str]) -> list[str]:
    """The modules of a command: ``-m`` MODULE, a script's imports, and local MODULE:APP arguments."""
    modules = []
    if arguments[1] == "-m":
        modules.append(arguments[2])
        rest = arguments[3:]
    else:
        modules += _imports_of(arguments[1])
        rest = arguments[2:]
    for word in rest:
        name = word.partition(":")[0]
        if ":" in word and all(part.isidentifier() for part in name.split(".")):
            modules.append(name)
    return modules


def _imports_of(script: str) -> list[str]:
    """The top-level imports of a script, without running it."""
    with open(script, "rb") as file:
        tree = ast.parse(file.read())
    modules = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append(node.module)
    return modules


def _first_path(arguments: list[str]) -> str:
    return os.getcwd() if arguments[1] == "-m" else os.path.dirname(os.path.abspath(arguments[1]))


class ForkedPod:
    """A forked process that waits for its order, as seen by the warm process."""

    def __init__(self, order: socket.socket) -> None:
        self._order = order

    def ordered(self, line: bytes, descriptors: "list[int]") -> "dict[str, Any] | None":
        """Send the order to the process, and return its reply; None if the process has exited."""
        received = b""
        with self._order:
            # A fast process replies and closes its end before ``sendall`` returns, which then fails. The reply counts.
            with contextlib.suppress(ConnectionError):
                sent = socket.send_fds(self._order, [line], descriptors) if descriptors else 0
                self._order.sendall(line[sent:])
            with contextlib.suppress(ConnectionError):
                while piece := self._order.recv(_PIECE_BYTES):
                    received += piece
        return json.loads(received) if received else None


def _forked(control: socket.socket, confine: _Confine) -> "ForkedPod | None":
    """Fork a process that waits for its order. In the child, run the order and return None after its command."""
    mine, its = socket.socketpair()
    middle = os.fork()
    if middle:
        its.close()
        os.waitpid(middle, 0)
        return ForkedPod(mine)
    middle = os.getpid()
    if os.fork():
        os._exit(0)
    with its:
        try:
            control.close()
            mine.close()
            os.setsid()
            line, descriptors = _received(its)
            if not line:
                os._exit(0)
            order = json.loads(line)
            _become(order, its, middle, log=descriptors[0], confine=confine)
        except BaseException as error:  # noqa: BLE001 - no exception may reach the frames of the warm process
            with contextlib.suppress(OSError):
                its.sendall(json.dumps({"failed": str(error)}).encode())
            os._exit(1)
    _run(order["arguments"])
    return None


def _become(order: dict[str, Any], pipe: socket.socket, middle: int, *, log: int, confine: _Confine) -> None:
    """Become the process of a pod, and reply with its record."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[_START_TIME_FIELD])
    record = json.dumps({**order["record"], "pid": os.getpid(), "start_ticks": ticks})
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    os.chdir(order["folder"])
    _confined(order, confine)
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    # The first parent may still be ending; other work was done meanwhile.
    while os.getppid() == middle:
        time.sleep(0.0001)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != order["owner"]:
        os._exit(1)
    _LIBC.prctl(_PR_SET_NAME, os.path.basename(order["arguments"][0]).encode(), 0, 0, 0)
    pipe.sendall(record.encode())


def _use_names(hostname: bytes, hosts: bytes, own_mounts: Callable[[], None]) -> None:
    """Use the hostname and the hosts file of a pod in this process. Without root, the hostname is not changed.

    ``own_mounts`` gives the process its own mount namespace. If that fails, the hosts file is not changed.
    """
    if os.geteuid() == 0 and _LIBC.unshare(_CLONE_NEWUTS) == 0:
        _LIBC.sethostname(hostname, len(hostname))
    if hosts:
        with contextlib.suppress(OSError):
            own_mounts()
            _LIBC.mount(hosts, b"/etc/hosts", b"none", ctypes.c_ulong(_MS_BIND), None)


def _run(arguments: list[str]) -> None:
    """Run a command as the interpreter would, with its exit codes, tracebacks and exit handlers."""
    # In place: a module such as waitress may have kept the list from its import.
    sys.path[0] = _first_path(arguments)
    if arguments[1] == "-m":
        sys.argv[:] = ["-m", *arguments[3:]]
        runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments[1:]
        runpy.run_path(arguments[1], run_name="__main__")
