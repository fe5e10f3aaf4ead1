"""Checks this machine for ``serving doctor``: Python, names, limits, ports, clock. The checks need no running system.

Each check returns findings: passed, warning or failed, with advice for the latter two.
"""

import os
import platform
import resource
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from serving.home.containers.cgroups import places_by_controller
from serving.home.containers.engine import RUNTIME_VARIABLE, find_engine
from serving.home.pods.userranges import subordinate_range
from serving.home.pods.volumequota import quota_gap
from serving.home.processes import mounts
from serving.home.processes.isolation import MODES, SAME_USER, Isolation, missing_layers
from serving.home.state import naming
from serving.home.supervisor.binding import PORTS
from serving.tools.cli.client.shortnames import UNRESOLVED

_PYTHON_MIN = (3, 11, 2)
_LOOPBACK = "127.0.0.1"
# A queued request takes two descriptors, a pod a few; ordinary load tests fail below this limit.
_DESCRIPTORS_WISHED = 4096
_DESCRIPTORS_MIN = 256
_DISK_WISHED_BYTES = 500 * 2**20
_DISK_MIN_BYTES = 20 * 2**20
# The clock was never set if it shows an earlier time.
_CLOCK_MIN_S = 1_735_689_600  # 1 January 2025
_CLOCK_SLACK_S = 60.0
_CGROUPS = Path("/sys/fs/cgroup")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report. ``advice`` is "" if the check passed."""

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""


def check_python() -> Iterator[Finding]:
    """Check the Python version and the operating system."""
    version = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    if sys.version_info < _PYTHON_MIN:
        yield Finding(name="python", state="fail", text=version, advice="install Python 3.11.2 or newer")
    elif sys.platform != "linux":
        advice = "`serving up` needs Linux; against a cluster all other commands work"
        yield Finding(name="python", state="fail", text=version, advice=advice)
    else:
        yield Finding(name="python", state="ok", text=version)


def holder_of(state: Path) -> int | None:
    """The id of the process that locks a state folder, from the kernel's list of locks; None without a lock."""
    try:
        lock = (state / "lock").stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    for line in locks.splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == place:
            return int(words[4])
    return None


def check_state(state: Path, holder: int | None) -> Iterator[Finding]:
    """Check the state folder: the locking process, permissions, secrets and disk space."""
    if holder is not None:
        yield Finding(name="state", state="ok", text=f"{state}, held by process {holder}")
    elif not state.exists():
        above = _above(state)
        if os.access(above, os.W_OK):
            yield Finding(name="state", state="ok", text=f"{state}: does not exist yet; `serving up` creates it")
        else:
            advice = "make it writable, or give another --state"
            yield Finding(name="state", state="fail", text=f"{above} cannot be written", advice=advice)
            return
    elif not os.access(state, os.W_OK):
        advice = "make it writable, or give another --state"
        yield Finding(name="state", state="fail", text=f"{state} cannot be written", advice=advice)
    else:
        yield Finding(name="state", state="ok", text=f"{state}, not in use")
    for name in ("key", "token", "kubeconfig"):
        path = state / name
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            advice = f"chmod 600 {path}: users who can read it can run code on this machine"
            yield Finding(name="state", state="warn", text=f"other users can read {name}", advice=advice)
    there = state if state.exists() else _above(state)
    free = shutil.disk_usage(there).free
    text = f"{free / 2**30:.1f} GiB free for state and logs"
    if free < _DISK_WISHED_BYTES:
        is_full = free < _DISK_MIN_BYTES
        yield Finding(name="disk", state="fail" if is_full else "warn", text=text, advice="make room on this disk")
    else:
        yield Finding(name="disk", state="ok", text=text)


def check_volumes(volumes: Path) -> Iterator[Finding]:
    """Check whether the file system limits the size of volumes; no finding without volumes."""
    count = sum(1 for _ in volumes.glob("*/*")) if os.access(volumes, os.R_OK | os.X_OK) else 0
    if not count:
        return
    gap = quota_gap(volumes)
    if gap:
        text = f"the sizes of {count} are not enforced: {gap}"
        advice = "a warning names each volume above its size; docs/volumes.md says how to enforce them"
        yield Finding(name="volumes", state="warn", text=text, advice=advice)
    else:
        yield Finding(name="volumes", state="ok", text=f"the sizes of {count} are enforced by project quotas")


def check_journal(path: Path) -> Iterator[Finding]:
    """Check the journal file by the store's rules. No process may have it open."""
    from serving.home.store.repair import find_damage  # noqa: PLC0415 - the store, for this check alone

    damage = find_damage(path)
    if damage:
        advice = "`serving doctor --repair` shows its readable part; or restore a backup: docs/backup.md"
        yield Finding(name="journal", state="fail", text=f"{path}: {damage}", advice=advice)
    else:
        yield Finding(name="journal", state="ok", text=f"{path.name} is intact, {path.stat().st_size / 1024:.0f} KiB")


def check_free_ports(taken: Mapping[str, int] | None = None) -> Iterator[Finding]:
    """Check that no process uses the ports of ``serving up``. ``taken`` replaces the default ports, by name."""
    wanted = taken if taken is not None else {port.name: port.number for port in PORTS}
    busy = {name: number for name, number in wanted.items() if not _is_free(number)}
    for name, number in busy.items():
        advice = f"stop the process that listens there, or use `serving up --{name}-port=0`"
        yield Finding(
            name="ports", state="fail", text=f"port {number} ({name}) is taken by another process", advice=advice
        )
    if not busy:
        numbers = ", ".join(str(number) for number in wanted.values())
        yield Finding(name="ports", state="ok", text=f"{numbers} are free")


def check_names(host: str = "hello.default.localhost") -> Iterator[Finding]:
    """Check that the system's resolver maps names below localhost to this machine."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, 80, proto=socket.IPPROTO_TCP)}
    except OSError:
        addresses = set()
    if _LOOPBACK in addresses or "::1" in addresses:
        yield Finding(name="names", state="ok", text="*.localhost resolves to this machine")
        return
    advice = "use the `curl -H 'Host: ...'` form that `serving url` prints; browsers and curl resolve it themselves"
    yield Finding(name="names", state="warn", text="*.localhost does not resolve here", advice=advice)


def check_pod_names(*, can_mount: bool | None = None) -> Iterator[Finding]:
    """Check that each pod can have a separate hosts file with the names of services."""
    if mounts.can_mount() if can_mount is None else can_mount:
        yield Finding(name="pod names", state="ok", text="apps call other services by their cluster-local names")
        return
    advice = "allow user namespaces (sysctl user.max_user_namespaces), or run `serving up` as root"
    yield Finding(name="pod names", state="warn", text=UNRESOLVED, advice=advice)


def check_isolation(missing: Sequence[str] | None = None, *, is_root: bool | None = None) -> Iterator[Finding]:
    """Check that pods can be isolated from this machine and each other.

    ``missing`` are the kinds of isolation that the machine lacks; None: detect them.
    """
    is_root = (os.geteuid() == 0) if is_root is None else is_root
    wanted = Isolation(mode=MODES[0], state=tempfile.gettempdir(), is_root=is_root)
    absent = missing_layers(wanted) if missing is None else missing
    if absent:
        advice = "pods run with less isolation, see docs/isolation.md; --isolation strict refuses to start them"
        yield Finding(
            name="isolation", state="warn", text=f"pods are not isolated by {'; '.join(absent)}", advice=advice
        )
    if not is_root:
        advice = "run `serving up` as root, or run only apps that you trust with your rights"
        yield Finding(name="isolation", state="warn", text=f"pods are not isolated by {SAME_USER}", advice=advice)
    elif not absent:
        text = "pods see, signal and trace only their own processes, and have no capabilities"
        yield Finding(name="isolation", state="ok", text=text)


def check_secrets(*, is_root: bool | None = None) -> Iterator[Finding]:
    """Check that mounted Secrets stay off the disk."""
    if (os.geteuid() == 0) if is_root is None else is_root:
        yield Finding(name="secrets", state="ok", text="Secrets that pods mount are in memory")
        return
    text = "Secrets that pods mount are files of the state folder until the pod ends"
    yield Finding(name="secrets", state="warn", text=text, advice="run `serving up` as root, or on an encrypted disk")


def check_user_namespaces(proc: Path = Path("/proc"), *, is_root: bool | None = None) -> Iterator[Finding]:
    """Check that this user may create user namespaces."""
    name, advice = "user namespaces", ""
    if not (proc / "self/ns/user").exists():
        text, advice = (
            "the kernel does not support them",
            "boot a kernel with CONFIG_USER_NS; containers without root need it",
        )
    elif _setting(proc / "sys/user/max_user_namespaces") == 0:
        text, advice = "the kernel setting allows none", "sysctl user.max_user_namespaces=10000"
    elif (os.geteuid() == 0) if is_root is None else is_root:
        text = "this user may create them"
    elif _setting(proc / "sys/kernel/unprivileged_userns_clone") == 0:
        text, advice = (
            "only root may create them",
            "sysctl kernel.unprivileged_userns_clone=1, or run `serving up` as root",
        )
    elif _setting(proc / "sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        text = "AppArmor removes all capabilities in those of users other than root"
        advice = "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run `serving up` as root"
    else:
        text = "this user may create them"
    yield Finding(name=name, state="warn" if advice else "ok", text=text, advice=advice)


def _setting(path: Path) -> int | None:
    """A numeric kernel setting; None if the kernel lacks the setting."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def check_cgroup(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> Iterator[Finding]:
    """Check that the kernel can enforce memory and cpu limits of pods."""
    instead = "memory is watched and pods above their limit are ended; cpu limits become priorities"
    if not (root / "cgroup.controllers").exists():
        yield _older_cgroup(places_by_controller("\n".join(_lines(own)), root), instead)
        return
    place = next((line[3:] for line in _lines(own) if line.startswith("0::")), "/")
    mine = root / place.lstrip("/")
    controllers = set(" ".join(_lines(mine / "cgroup.controllers")).split())
    missing = sorted({"cpu", "memory"} - controllers)
    if missing:
        text = f"cgroup v2 without {' and '.join(missing)} here"
        yield Finding(name="cgroup", state="warn", text=text, advice=instead)
    elif not os.access(mine, os.W_OK):
        yield Finding(
            name="cgroup",
            state="warn",
            text="cgroup v2 exists, but this user may not create groups in it",
            advice=instead,
        )
    else:
        yield Finding(name="cgroup", state="ok", text="cgroup v2 with cpu and memory")


def _older_cgroup(places: Mapping[str, Path], instead: str) -> Finding:
    wanted = [places[kind] for kind in ("cpu", "memory") if kind in places]
    foreign = [str(path) for path in wanted if not os.access(path, os.W_OK)]
    if len(wanted) == 2 and not foreign:
        text = f"cgroup v1 with cpu and memory: limits of containers are the kernel's; of processes, {instead}"
        return Finding(name="cgroup", state="ok", text=text)
    refused = f"cgroup v1 exists, but this user may not create groups in it: {', '.join(foreign)} cannot be written"
    text = refused if foreign else "cgroup v1 without cpu and memory here" if places else "cgroups are not mounted"
    return Finding(name="cgroup", state="warn", text=text, advice=instead)


def check_containers(state: Path) -> Iterator[Finding]:
    """Check that the machine can run images, by running a container, and can pull images."""
    try:
        with naming(state):
            engine = find_engine(os.environ.get(RUNTIME_VARIABLE, ""), state)
    except OSError as error:
        text = f"unknown: {error.filename}: {error.strerror}"
        yield Finding(name="containers", state="fail", text=text, advice="no container was tried")
        return
    if not engine.runtime:
        advice = "without it manifests that name an image do not run; --command and serving.dev/command do"
        yield Finding(name="containers", state="warn", text=engine.reason, advice=advice)
        return
    text = f"{engine.runtime} runs containers"
    if engine.is_rootless:
        text += " without root: they share this machine's network and one user, and cpu limits are not enforced"
    yield Finding(name="containers", state="ok", text=text)
    if engine.no_users:
        advice = "pods with `hostUsers: false` do not start; see docs/containers.md, Users of its own"
        text = f"containers cannot have separate users: {engine.no_users}"
        yield Finding(name="users", state="warn", text=text, advice=advice)
    elif not engine.is_rootless:
        subordinate = subordinate_range()
        text = f"`hostUsers: false` gives a pod 65,536 users from {subordinate.first} on, enough for {subordinate.pod_count} pods"
        yield Finding(name="users", state="ok", text=text)
    if shutil.which("skopeo") is None:
        advice = "apt-get install skopeo; `serving image import FILE` works without it"
        yield Finding(name="images", state="warn", text="images cannot be pulled from registries", advice=advice)
    else:
        tools = [tool for tool in ("podman", "buildah", "docker", "skopeo") if shutil.which(tool)]
        yield Finding(name="images", state="ok", text=f"images come from {', '.join(tools)} and archives")


def check_descriptors(limits: tuple[int, int] | None = None) -> Iterator[Finding]:
    """Check the limit of open files and sockets; ``limits`` are the soft and the hard limit."""
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files and sockets a process"
    if soft >= _DESCRIPTORS_WISHED or soft == resource.RLIM_INFINITY:
        yield Finding(name="files", state="ok", text=text)
        return
    wished = _DESCRIPTORS_WISHED if hard == resource.RLIM_INFINITY else min(hard, 65536)
    advice = f"`ulimit -n {wished}` before `serving up`: each waiting request takes two"
    yield Finding(name="files", state="fail" if soft < _DESCRIPTORS_MIN else "warn", text=text, advice=advice)


def check_clock(state: Path, *, wall_s: float | None = None) -> Iterator[Finding]:
    """Check the time of day: no file in the state folder may have a future modification time."""
    now_s = time.time() if wall_s is None else wall_s
    newest_s = max((_modified_s(path) for path in (state, *_entries(state))), default=0.0)
    if now_s < _CLOCK_MIN_S:
        text = f"it says {time.strftime('%Y-%m-%d', time.gmtime(now_s))}"
        yield Finding(name="clock", state="fail", text=text, advice="set the clock")
    elif newest_s > now_s + _CLOCK_SLACK_S:
        text = f"the newest file of the state folder is {newest_s - now_s:.0f} s in the future"
        advice = "the clock was set back: ages and events look wrong until it has caught up"
        yield Finding(name="clock", state="warn", text=text, advice=advice)
    else:
        shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
        yield Finding(name="clock", state="ok", text=shown)


def _above(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


def _is_free(port: int) -> bool:
    try:
        socket.create_server((_LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return ()


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
