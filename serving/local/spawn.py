"""Start the processes of pods from the template: a fork for a queue-proxy, fork and exec for an app.

The template has no loop and no thread, so a fork is safe, and it has imported what a queue-proxy needs, so a fork is
fast. A child makes its own loop, randomness and connections after the fork. Every child leads a session of its own, dies
with the template, has no descriptor but its own, and writes to its log.

Signals are blocked across the fork. A child inherits the template's handlers: a SIGTERM that reached one of them before
the child has reset it would be lost, and the pod would stay for its whole grace period.
"""

import contextlib
import encodings.idna  # noqa: F401 - loaded by the first connection otherwise, in each fork again
import json
import os
import signal
import socket
import subprocess
import traceback
from collections.abc import Iterator
from typing import NoReturn

import serving.wire.websocket  # noqa: F401 - as above
from serving.aio.netns import enter
from serving.local.containers.launch import launch_container
from serving.local.mounts import show_at_own_paths, take_hostname
from serving.local.orders import StartProcess
from serving.local.process_lifetime import die_with_parent, name_process
from serving.model.errors import SettingsError
from serving.queueproxy.main import run
from serving.queueproxy.podspec import spec_from_environment

__all__ = ["exec_app", "fork_queue_proxy"]

_LOG_MODE = 0o600
_BACKLOG = 4096
_DESCRIPTORS_MAX = 2**20
_FIRST_OWN_DESCRIPTOR = 3
# A shell's exit code for wrong usage; here for an environment that cannot be used.
_USAGE_EXIT = 2
# Those for which the template has a handler.
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def exec_app(order: StartProcess) -> int:
    """Execute an app; its process id. Raises ``OSError`` when it cannot be executed, or its folder or log not opened."""
    if order.launch is not None:
        return launch_container(order)
    with open(order.log, "ab", opener=_private) as log, _signals_blocked():
        process = subprocess.Popen(  # noqa: S603 - the user's own command
            order.arguments,
            env=order.environment,
            cwd=None if order.mounts else order.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: _become_app(order),  # noqa: PLW1509 - one thread, by design
        )
    # The template waits for all its children; this object must not.
    process.returncode = 0
    return process.pid


def fork_queue_proxy(order: StartProcess) -> tuple[int, int]:
    """Fork a queue-proxy; its process id, and the end of a pipe from which its readiness is read. Raises ``OSError``."""
    log = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _LOG_MODE)
    mine, its = os.pipe()
    try:
        with _signals_blocked():
            pid = os.fork()
            if pid == 0:
                _be_queue_proxy(order, log=log, ready=its)
    except OSError:
        os.close(mine)
        raise
    finally:
        os.close(log)
        os.close(its)
    os.set_blocking(mine, False)
    return pid, mine


def _be_queue_proxy(order: StartProcess, *, log: int, ready: int) -> NoReturn:
    """Run in the child. The template's frames stay below this one, so that none of them is finalized here."""
    code = 1
    try:
        os.setsid()
        _become_child()
        name_process("queue-proxy")
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.closerange(_FIRST_OWN_DESCRIPTOR, ready)
        os.closerange(ready + 1, _DESCRIPTORS_MAX)
        os.environ.clear()
        environment = {**order.environment, **_in_network(order), "SERVING_READY_FD": str(ready)}
        code = run(spec_from_environment(environment))
    except SettingsError as error:
        os.write(2, f"{error}\n".encode())
        code = _USAGE_EXIT
    except BaseException:  # noqa: BLE001 - no exception may reach the template's frames
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _in_network(order: StartProcess) -> dict[str, str]:
    """Move this process to the network of the app, if that is another; what it has to know of our own.

    It listens, and sends its statistics, where we are.
    """
    if not order.network:
        return {}
    descriptors = {}
    for name, variable in (("requests", "SERVING_POD_LISTEN"), ("admin", "SERVING_POD_ADMIN_LISTEN")):
        host, _, port = order.environment[variable].rpartition(":")
        made = socket.create_server((host, int(port)), backlog=_BACKLOG)
        descriptors[name] = made.detach()
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    network = os.open(order.network, os.O_RDONLY | os.O_CLOEXEC)
    enter(network)
    os.close(network)
    return {"SERVING_LISTEN_FDS": json.dumps(descriptors), "SERVING_POD_STATS_NETWORK": f"/proc/self/fd/{home}"}


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold back every signal; those that arrive in the meantime are delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become_app(order: StartProcess) -> None:
    """Right after a fork: have the pod's hostname, and see the mounts at their own paths, if the kernel allows it."""
    take_hostname(order.hostname)
    if order.mounts:
        try:
            show_at_own_paths(order.mounts, new_root=order.new_root, folder=order.folder)
        except OSError as error:
            os.write(2, f"serving: volumes are only below $HOME, without a mount namespace: {error}\n".encode())
            os.chdir(order.folder)
    # Last: a new user namespace takes the parent-death signal away.
    _become_child()


def _become_child() -> None:
    """Right after a fork: drop the template's handlers, then take the signals that were held back."""
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    die_with_parent()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _LOG_MODE)
