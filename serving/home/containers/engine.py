"""Selects the container runtime, crun or runc, by running a test container.

A tiny container is run, because a version alone does not show that the kernel, this user's rights and the runtime
support containers. A failure is reported with the runtime's message and the package to install. As root the test
container has separate users; if that works, all other features work too.
"""

import base64
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
"""Supported runtimes, preferred one first; "rootless" is crun in a user namespace, for users other than root."""

RUNTIME_VARIABLE = "SERVING_CONTAINER_RUNTIME"
"""The environment variable that selects a runtime."""

_INSTALL = "install crun (apt-get install crun)"
_ROOTLESS = "rootless"
_MACHINE_FOLDERS = ("bin", "lib", "lib64", "usr", "sbin")
# Mount points, in the runtime's mount namespace, for files of containers with a user namespace: other users may enter
# these folders on every machine, and no machine needs them to start a container.
_PLACES = ("/mnt", "/media", "/srv", "/tmp")  # noqa: S108 - it is covered, not used


class ContainerEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A working container runtime: ``runtime`` is its path. If there is none, it is "", and ``reason`` says why.

    ``is_rootless``: the runtime runs without root. ``users_place`` is the folder in which the files of containers with
    their own user namespace are mounted. It is "" if this machine cannot run such containers; ``no_users`` says why.
    ``seccomp_filter`` is the default seccomp profile as compiled by the runtime, in base64.
    """

    runtime: str = ""
    reason: str = ""
    is_rootless: bool = False
    users_place: str = ""
    no_users: str = ""
    seccomp_filter: str = ""


def runtime_arguments(runtime: str, state: str, error_log: str) -> tuple[str, ...]:
    """The command line of a runtime, before its subcommand."""
    options = ("--root", state, "--log", error_log, "--log-format", "json")
    # crun rejects cgroups of both versions at once, so the launcher joins ours before it starts.
    manager = () if joins_cgroups(runtime) else ("--cgroup-manager", "disabled")
    return (runtime, *options, *manager)


def joins_cgroups(runtime: str) -> bool:
    """Whether a runtime moves containers to cgroups regardless of its options, as runc does."""
    return Path(runtime).name != "crun"


def find_engine(wanted: str = "", state: Path | None = None) -> ContainerEngine:
    """Test each installed runtime, or only ``wanted``, with files in the folder ``state``.

    Takes tens of milliseconds.
    """
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
        engine = ContainerEngine(runtime=path, is_rootless=is_rootless)
        usable, reason = _tried(engine if is_rootless else _with_place(engine, state), state)
        if reason and usable.users_place:
            usable, reason = _tried(msgspec.structs.replace(engine, no_users=reason), state)
        if not reason:
            return _with_filter(usable, state)
        reasons.append(f"{name}: {reason}")
    missing = f"{wanted or 'neither crun nor runc'} is {'not ' if wanted else ''}installed; {_INSTALL}"
    return ContainerEngine(reason="; ".join(reasons) or missing)


def _with_place(engine: ContainerEngine, state: Path | None) -> ContainerEngine:
    """The engine with ``users_place``, the folder for the files of containers with their own user namespace.

    This only finds a folder. It does not test whether such containers run.
    """
    folder = str((state or Path("/")).resolve())
    place = next((place for place in _PLACES if Path(place).is_dir() and not Path(folder).is_relative_to(place)), "")
    reason = "" if place else f"its files are mounted at one of {', '.join(_PLACES)}, which are not there"
    return msgspec.structs.replace(engine, users_place=place, no_users=reason)


def _with_filter(engine: ContainerEngine, state: Path | None) -> ContainerEngine:
    """The engine. If the runtime does not accept its compiled seccomp filter, the filter is removed."""
    if not engine.seccomp_filter or _tried(engine, state) == (engine, ""):
        return engine
    return msgspec.structs.replace(engine, seccomp_filter="")


def _tried(engine: ContainerEngine, state: Path | None) -> tuple[ContainerEngine, str]:
    """Run a container that ends immediately; return the engine with its compiled filter, and the failure or ""."""
    parent = state if state is not None and state.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        lower = folder / "lower"
        lower.mkdir()
        for machine_folder in _MACHINE_FOLDERS:
            (lower / machine_folder).mkdir()
        mounts = tuple(
            MountPoint(source=f"/{machine_folder}", target=f"/{machine_folder}", read_only=True)
            for machine_folder in _MACHINE_FOLDERS
            if Path("/", machine_folder).is_dir()
        )
        # The container's files belong to its own users; the machine's files are readable.
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
            seccomp_filter=engine.seccomp_filter,
        )
        (folder / "config.json").write_bytes(msgspec.json.encode(bundle_config(box, {})))
        errors, pid_file, records = str(folder / "errors"), str(folder / "pid"), str(folder / "state")
        container = f"serving-probe-{os.getpid()}"
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
                *("run", "--detach", "--pid-file", pid_file, "--bundle", name, container),
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
            return engine, str(error.strerror if isinstance(error, OSError) else error)
        return msgspec.structs.replace(engine, seccomp_filter=_compiled(Path(records, container))), ""


def _compiled(record: Path) -> str:
    """The seccomp filter that crun has compiled and stored with a container's state, in base64; "" if there is none."""
    try:
        return base64.b64encode((record / "seccomp.bpf").read_bytes()).decode()
    except OSError:
        return ""
