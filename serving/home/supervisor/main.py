"""The supervisor process: ``python -m serving.home.supervisor.main``.

It replaces ``serving up`` once its sockets are bound. It is a new interpreter in the same process, because the modules
of the command line would use 15 MiB as long as the system runs.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from serving.home.processes.process_lifetime import die_with_parent
from serving.home.state import StateFolder
from serving.home.supervisor.children import CHILDREN
from serving.home.supervisor.notify import SystemdNotifier
from serving.home.supervisor.supervisor import Supervisor
from serving.net.aio.output import write_error, write_output

_MODULE = "serving.home.supervisor.main"
# The descriptor of a memory file with the launch, which contains tokens; the kernel shows arguments and variables.
_LAUNCH_VARIABLE = "SERVING_LAUNCH_FD"
REMOVE_LEFTOVERS = """
import sys
from pathlib import Path
from serving.home.containers.network import remove_leftovers
remove_leftovers(Path(sys.argv[1]))
"""
"""A program that removes leftovers of pods from a state folder.

The program runs in a separate process, because after an upgrade the modules on disk may not match those that the
supervisor loaded.
"""


class SupervisorLaunch(NamedTuple):
    """The options of a system.

    ``sockets`` are descriptors by name. ``environment`` is for daemons; ``systemd`` has systemd's variables. When all
    daemons serve, the supervisor prints ``lines``, runs the command ``sample`` if it is not empty, and writes a byte to
    ``ready_fd`` if it is not -1.
    """

    state: str
    lock_fd: int
    sockets: Mapping[str, int]
    activator_count: int
    has_node_groups: bool
    has_acme: bool
    environment: Mapping[str, str]
    systemd: Mapping[str, str]
    lines: Sequence[str]
    sample: Sequence[str]
    ready_fd: int

    @property
    def descriptors(self) -> list[int]:
        """All descriptors in the launch."""
        return [*self.sockets.values(), self.lock_fd, *([self.ready_fd] if self.ready_fd >= 0 else [])]


def become_supervisor(launch: SupervisorLaunch, arguments: Sequence[str]) -> NoReturn:
    """Replace this program by the supervisor. ``arguments`` appear in ``ps``."""
    file = os.memfd_create("launch", 0)
    os.write(file, json.dumps(launch._asdict()).encode())
    for descriptor in launch.descriptors:
        os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    environment = {**os.environ, _LAUNCH_VARIABLE: str(file)}
    os.execve(sys.executable, [sys.executable, "-m", _MODULE, *arguments], environment)  # noqa: S606 - our own module


def main() -> int:
    """Run the system until SIGTERM or SIGINT; returns the exit code."""
    with os.fdopen(int(os.environ.pop(_LAUNCH_VARIABLE)), "rb") as file:
        file.seek(0)
        launch = SupervisorLaunch(**json.load(file))
    for descriptor in launch.descriptors:
        os.set_inheritable(descriptor, False)
    sockets = {name: socket.socket(fileno=number) for name, number in launch.sockets.items()}
    state = StateFolder(Path(launch.state))

    def on_started() -> None:
        write_output("\n".join(launch.lines))
        if launch.sample:
            # In a separate process, because this one supervises children.
            subprocess.Popen(launch.sample, preexec_fn=die_with_parent)  # noqa: S603, PLW1509 - our own CLI; one thread, by design
        if launch.ready_fd >= 0:
            os.write(launch.ready_fd, b"1")
            os.close(launch.ready_fd)

    exit_code = Supervisor(
        state,
        sockets,
        CHILDREN(launch.activator_count, has_node_groups=launch.has_node_groups, has_acme=launch.has_acme),
        environment=launch.environment,
        notifier=SystemdNotifier(dict(launch.systemd)),
    ).run(on_started)
    with contextlib.suppress(OSError):
        subprocess.run([sys.executable, "-c", REMOVE_LEFTOVERS, launch.state], check=False)  # noqa: S603 - our own code
    (write_error if exit_code else write_output)("serving has ended")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
