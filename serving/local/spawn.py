"""Starting the processes of pods from the template: a fork for a queue-proxy, fork and exec for an app.

The template has no loop and no thread, so that a fork is safe, and has loaded what a queue-proxy needs, so that it is
fast. What a child makes of its own (loop, randomness, connections) is made after the fork. Every child is the leader of
a session of its own, dies with the template, has no descriptor but its own, and writes into its log.
"""

import os
import signal
import subprocess
import traceback
from typing import NoReturn

from serving.local.deathwish import die_with_parent, name_process
from serving.local.orders import Start
from serving.model.errors import SettingsError
from serving.queueproxy.main import run
from serving.queueproxy.podspec import spec_from_environment

__all__ = ["exec_app", "fork_queue_proxy"]

_LOG_MODE = 0o600
_DESCRIPTORS_MAX = 2**20
_FIRST_OWN_DESCRIPTOR = 3
# What the shell says of a command that it cannot use; ours for an environment that cannot be used.
_USAGE_EXIT = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def exec_app(order: Start) -> int:
    """Execute an app; its process id. Raises ``OSError`` when it cannot be executed, or its folder or log not opened."""
    with open(order.log, "ab", opener=_private) as log:
        process = subprocess.Popen(  # noqa: S603 - that is what we are for
            order.arguments,
            env=order.environment,
            cwd=order.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one thread, by design
        )
    # Waited for by whoever waits for all children; this object shall not mind.
    process.returncode = 0
    return process.pid


def fork_queue_proxy(order: Start) -> tuple[int, int]:
    """Fork a queue-proxy; its process id, and the end of a pipe from which its readiness is read. Raises ``OSError``."""
    log = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _LOG_MODE)
    mine, its = os.pipe()
    try:
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


def _be_queue_proxy(order: Start, *, log: int, ready: int) -> NoReturn:
    """In the child. The template's frames stay below this one, so that nothing of it is finalized here."""
    code = 1
    try:
        os.setsid()
        die_with_parent()
        name_process("queue-proxy")
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.closerange(_FIRST_OWN_DESCRIPTOR, ready)
        os.closerange(ready + 1, _DESCRIPTORS_MAX)
        os.environ.clear()
        code = run(spec_from_environment({**order.environment, "SERVING_READY_FD": str(ready)}))
    except SettingsError as error:
        os.write(2, f"{error}\n".encode())
        code = _USAGE_EXIT
    except BaseException:  # noqa: BLE001 - nothing may pass into the template's frames
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _LOG_MODE)
