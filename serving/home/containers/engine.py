"""Selects the runtime for containers: crun or runc, by running a container.

Running a tiny container is a better test than a version: the kernel, the rights of this user and the runtime must all support it.
A failure is reported with the runtime's message and the package to install.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from serving.home.containers.bundle import ContainerBox, bundle_config
from serving.home.containers.users import ContainerUser
from serving.home.processes.launches import ContainerLaunch
from serving.home.processes.mounts import MountPoint, OverlayMount
from serving.home.processes.orders import Launch, StartProcess

RUNTIMES = ("crun", "runc", "rootless")
"""The runtimes that start containers, the preferred one first; "rootless" is crun in a user namespace, for users other than root."""

RUNTIME_VARIABLE = "SERVING_CONTAINER_RUNTIME"
"""The environment variable that names the one runtime to use."""

_INSTALL = "install crun (apt-get install crun)"
_ROOTLESS = "rootless"
_MACHINE_FOLDERS = ("bin", "lib", "lib64", "usr", "sbin")


class ContainerEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The working runtime's path; "" and the reason if there is none. ``is_rootless`` says how to use it."""

    runtime: str = ""
    reason: str = ""
    is_rootless: bool = False


def runtime_arguments(runtime: str, state: str, error_log: str) -> tuple[str, ...]:
    """The command line of a runtime, up to its subcommand."""
    options = ("--root", state, "--log", error_log, "--log-format", "json")
    # crun refuses cgroups of both versions at once; the launcher joins ours before it starts.
    manager = () if joins_cgroups(runtime) else ("--cgroup-manager", "disabled")
    return (runtime, *options, *manager)


def joins_cgroups(runtime: str) -> bool:
    """Whether a runtime moves containers to cgroups regardless of its options, as runc does."""
    return Path(runtime).name != "crun"


def find_engine(wanted: str = "") -> ContainerEngine:
    """Try each installed runtime, or only ``wanted``. Takes some tens of milliseconds."""
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
        reason = _probe(path, is_rootless=name == _ROOTLESS)
        if not reason:
            return ContainerEngine(runtime=path, is_rootless=name == _ROOTLESS)
        reasons.append(f"{name}: {reason}")
    missing = f"{wanted or 'neither crun nor runc'} is {'not ' if wanted else ''}installed; {_INSTALL}"
    return ContainerEngine(reason="; ".join(reasons) or missing)


def _probe(runtime: str, *, is_rootless: bool) -> str:
    """Run a container that ends at once; return the failure, or ""."""
    with tempfile.TemporaryDirectory(prefix="serving-probe-", ignore_cleanup_errors=True) as name:
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
        box = ContainerBox(
            arguments=("/bin/sh", "-c", "exit 0"),
            environment={},
            folder="/",
            user=ContainerUser(uid=0, gid=0),
            mounts=mounts,
            hostname="probe",
            network="",
            is_rootless=is_rootless,
        )
        (folder / "config.json").write_bytes(msgspec.json.encode(bundle_config(box, {})))
        errors, pid_file, state = str(folder / "errors"), str(folder / "pid"), str(folder / "state")
        root = OverlayMount(
            lower=str(lower), upper=str(folder / "upper"), work=str(folder / "work"), target=str(folder / "rootfs")
        )
        order = StartProcess(
            pod="probe",
            name="probe",
            environment={},
            log=str(folder / "log"),
            arguments=(
                *runtime_arguments(runtime, state, errors),
                *("run", "--detach", "--pid-file", pid_file, "--bundle", name, f"serving-probe-{os.getpid()}"),
            ),
            launch=Launch(pid_file=pid_file, error_log=errors, state=state, root=root, is_rootless=is_rootless),
        )
        try:
            ContainerLaunch(order).finish()
        except (OSError, subprocess.SubprocessError) as error:
            return str(error.strerror if isinstance(error, OSError) else error)
    return ""
