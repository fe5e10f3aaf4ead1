"""Selects the runtime for containers: crun or runc, by running a container.

Running a tiny container is a better test than a version: the kernel, the rights of this user and the runtime must all support it.
A failure is reported with the runtime's message and the package to install. As root the container has users of its own at first:
where that works, everything else does.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from serving.home.containers.bundle import ContainerBox, bundle_config
from serving.home.containers.users import ContainerUser
from serving.home.pods.userranges import DEFAULT_RANGE
from serving.home.processes.launches import ContainerLaunch
from serving.home.processes.mounts import MountPoint, OverlayMount
from serving.home.processes.orders import Launch, StartProcess
from serving.home.processes.ownusers import OwnUsers

RUNTIMES = ("crun", "runc", "rootless")
"""The runtimes that start containers, the preferred one first; "rootless" is crun in a user namespace, for users other than root."""

RUNTIME_VARIABLE = "SERVING_CONTAINER_RUNTIME"
"""The environment variable that names the one runtime to use."""

_INSTALL = "install crun (apt-get install crun)"
_ROOTLESS = "rootless"
_MACHINE_FOLDERS = ("bin", "lib", "lib64", "usr", "sbin")
# A runtime finds the files of a container with users of its own in one of these, in its own mount namespace: others may enter
# them on any machine, and no machine needs them to start a container.
_PLACES = ("/mnt", "/media", "/srv", "/tmp")  # noqa: S108 - it is covered, not used


class ContainerEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The working runtime's path; "" and the reason if there is none. ``is_rootless`` says how to use it.

    ``users_place`` is the folder for the files of containers with users of their own, as root; "" and ``no_users``, the reason,
    where there can be none.
    """

    runtime: str = ""
    reason: str = ""
    is_rootless: bool = False
    users_place: str = ""
    no_users: str = ""


def runtime_arguments(runtime: str, state: str, error_log: str) -> tuple[str, ...]:
    """The command line of a runtime, up to its subcommand."""
    options = ("--root", state, "--log", error_log, "--log-format", "json")
    # crun refuses cgroups of both versions at once; the launcher joins ours before it starts.
    manager = () if joins_cgroups(runtime) else ("--cgroup-manager", "disabled")
    return (runtime, *options, *manager)


def joins_cgroups(runtime: str) -> bool:
    """Whether a runtime moves containers to cgroups regardless of its options, as runc does."""
    return Path(runtime).name != "crun"


def find_engine(wanted: str = "", state: Path | None = None) -> ContainerEngine:
    """Try each installed runtime, or only ``wanted``, with files in the folder ``state``. Takes some tens of milliseconds."""
    if wanted and wanted not in RUNTIMES:
        return ContainerEngine(reason=f"{RUNTIME_VARIABLE}={wanted}: expected one of {', '.join(RUNTIMES)}")
    is_root = os.geteuid() == 0
    if not is_root and wanted not in ("", _ROOTLESS):
        return ContainerEngine(reason=f"{RUNTIME_VARIABLE}={wanted} needs root")
    reasons = []
    for name in (wanted,) if wanted else RUNTIMES[:-1] if is_root else (_ROOTLESS,):
        path = shutil.which("crun" if name == _ROOTLESS else name)
        if path is None:
            continue
        is_rootless = name == _ROOTLESS
        found = ContainerEngine(runtime=path, is_rootless=True) if is_rootless else _with_users(path, state)
        reason = "" if found.users_place else _probe(found, state)
        if not reason:
            return found
        reasons.append(f"{name}: {reason}")
    missing = f"{wanted or 'neither crun nor runc'} is {'not ' if wanted else ''}installed; {_INSTALL}"
    return ContainerEngine(reason="; ".join(reasons) or missing)


def _with_users(runtime: str, state: Path | None) -> ContainerEngine:
    """A runtime, with the place for users if a container with its own works."""
    folder = str((state or Path("/")).resolve())
    place = next((one for one in _PLACES if Path(one).is_dir() and not Path(folder).is_relative_to(one)), "")
    if not place:
        return ContainerEngine(
            runtime=runtime, no_users=f"its files are mounted at one of {', '.join(_PLACES)}, which are not there"
        )
    found = ContainerEngine(runtime=runtime, users_place=place)
    reason = _probe(found, state)
    return ContainerEngine(runtime=runtime, no_users=reason) if reason else found


def _probe(engine: ContainerEngine, state: Path | None) -> str:
    """Run a container that ends at once; return the failure, or ""."""
    parent = state if state is not None and state.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        lower = folder / "lower"
        lower.mkdir()
        for one in _MACHINE_FOLDERS:
            (lower / one).mkdir()
        mounts = tuple(
            MountPoint(source=f"/{one}", target=f"/{one}", read_only=True)
            for one in _MACHINE_FOLDERS
            if Path("/", one).is_dir()
        )
        # The files of the container are of its own users, those of the machine are open.
        users = OwnUsers(first=DEFAULT_RANGE.first, place=engine.users_place) if engine.users_place else None
        box = ContainerBox(
            arguments=("/bin/sh", "-c", "exit 0"),
            environment={},
            folder="/",
            user=ContainerUser(uid=0, gid=0),
            mounts=mounts,
            hostname="probe",
            network="",
            is_rootless=engine.is_rootless,
            users=users,
        )
        (folder / "config.json").write_bytes(msgspec.json.encode(bundle_config(box, {})))
        errors, pid_file, records = str(folder / "errors"), str(folder / "pid"), str(folder / "state")
        root = OverlayMount(
            lower=str(lower), upper=str(folder / "upper"), work=str(folder / "work"), target=str(folder / "rootfs")
        )
        order = StartProcess(
            pod="probe",
            name="probe",
            environment={},
            log=str(folder / "log"),
            arguments=(
                *runtime_arguments(engine.runtime, records, errors),
                *("run", "--detach", "--pid-file", pid_file, "--bundle", name, f"serving-probe-{os.getpid()}"),
            ),
            launch=Launch(
                pid_file=pid_file,
                error_log=errors,
                state=records,
                root=root,
                is_rootless=engine.is_rootless,
                users=users,
            ),
        )
        try:
            ContainerLaunch(order).finish()
        except (OSError, subprocess.SubprocessError) as error:
            return str(error.strerror if isinstance(error, OSError) else error)
    return ""
