"""Starts a container from the template: joins its cgroups, mounts its root, and has crun or runc start it.

The mount of the root is made in a mount namespace of the launcher, from which the container's own is copied: it ends with the
container, and the machine's table of mounts never has it. The runtime exits when the container runs, which is then a child
of the nearest subreaper.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from serving.home.processes.mounts import hide, join_user, mount_overlay, own_mounts, own_user_and_mounts, unmount
from serving.home.processes.orders import Launch, StartProcess
from serving.home.processes.orderstreams import open_streams
from serving.home.processes.process_lifetime import die_with_parent

# crun refuses a machine that has cgroups of both versions, though it is not to manage them.
_HYBRID_CGROUPS = Path("/sys/fs/cgroup/unified")
_LAUNCH_MAX_S = 30.0
_ERROR_CHARACTERS_MAX = 500


class ContainerLaunch:
    """A runtime that starts the container of an order. ``descriptor`` can be read when ``finish`` need not wait.

    Raises ``OSError`` when the runtime cannot be executed.
    """

    def __init__(self, order: StartProcess) -> None:
        launch = order.launch
        assert launch is not None, "the order of a container"
        self.order = order
        self.end_s = time.monotonic() + _LAUNCH_MAX_S
        self._pid_file, self._errors = Path(launch.pid_file), Path(launch.error_log)
        self._pid_file.unlink(missing_ok=True)
        self._errors.unlink(missing_ok=True)
        streams = open_streams(order)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the runtime that was found at the start
                order.arguments,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                start_new_session=True,
                preexec_fn=lambda: _prepare(launch),  # noqa: PLW1509 - one thread, by design
            )
        finally:
            for descriptor in streams:
                os.close(descriptor)
        self.descriptor = os.pidfd_open(self._process.pid)

    def __repr__(self) -> str:
        return f"ContainerLaunch({self.order.pod}/{self.order.name}, pid {self._process.pid})"

    @property
    def has_ended(self) -> bool:
        """Whether ``finish`` need not wait."""
        return self._process.poll() is not None

    def finish(self) -> int:
        """Wait until the container runs; the process id of its first process. Raises ``OSError`` with the runtime's own text."""
        os.close(self.descriptor)
        try:
            exit_code = self._process.wait(max(0.0, self.end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise TimeoutError(0, f"no container within {_LAUNCH_MAX_S:g} s", self.order.arguments[0]) from None
        if exit_code != 0 or not self._pid_file.exists():
            reason = _error_of(self._errors) or f"exit code {exit_code}"
            raise OSError(0, reason, Path(self.order.arguments[0]).name)
        return int(self._pid_file.read_text())


def _prepare(launch: Launch) -> None:
    """Right after a fork: what must be in force before the runtime begins."""
    try:
        for folder in launch.cgroups:
            Path(folder, "cgroup.procs").write_text("0")
        if launch.is_rootless:
            _be_rootless(launch)
        else:
            own_mounts()
            if _HYBRID_CGROUPS.is_dir():
                unmount(str(_HYBRID_CGROUPS))
        if launch.root is not None:
            shutil.rmtree(launch.state, ignore_errors=True)
            for path in (launch.root.upper, launch.root.work):
                shutil.rmtree(path, ignore_errors=True)
                Path(path).mkdir(parents=True)
            Path(launch.root.upper).chmod(os.stat(launch.root.lower).st_mode & 0o7777)  # noqa: PTH116
            Path(launch.root.target).mkdir(exist_ok=True)
            mount_overlay(launch.root)
    except OSError as error:
        Path(launch.error_log).write_text(json.dumps({"msg": f"{error.filename or 'container'}: {error.strerror}"}))
        os._exit(1)
    die_with_parent()


def _be_rootless(launch: Launch) -> None:
    """Enter a user namespace of the container's own, or that of the container that is there."""
    if launch.root is not None:
        own_user_and_mounts()
    else:
        join_user(int(Path(launch.pid_file).with_name("pid").read_text()))
    if _HYBRID_CGROUPS.is_dir():
        # Mounts of the machine cannot be taken away here.
        hide(str(_HYBRID_CGROUPS.parent))


def _error_of(log: Path) -> str:
    """What the runtime wrote last, without its frame of JSON."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        line = log.read_text(errors="replace").strip().splitlines()[-1]
        return str(json.loads(line)["msg"])[:_ERROR_CHARACTERS_MAX]
    return ""
