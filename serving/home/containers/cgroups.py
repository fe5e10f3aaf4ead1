"""Cgroups of containers: created with their limits before a container starts, and removed after it ends.

Both cgroup versions work. A container has one folder per controller with version 1, and a single folder with version 2.
The folders are below this process's cgroup, so that its limits also apply to pods. If the kernel refuses a limit,
``make`` returns its name.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from serving.core.model.event import OOM_KILLED_REASON
from serving.core.model.objects import Object
from serving.core.model.quantity import parse_bytes, parse_millicores

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_PIDS_MAX = 8192
_CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
# Kubernetes' and the kernel's minimum: 1 ms per period.
_QUOTA_MIN_US = 1000
_SHARES_MIN, _SHARES_PER_CORE = 2, 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a container; None means no limit.

    ``cpu_m`` and ``cpu_request_m`` are thousandths of a core. ``cpu_request_m`` determines the container's share of the
    CPU when the CPU is contended.
    """

    cpu_m: int | None = None
    memory_bytes: int | None = None
    cpu_request_m: int | None = None


class CgroupUse(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a container: CPU seconds since its start, memory in bytes, and OOM kills."""

    cpu_s: float
    memory_bytes: int
    oom_kill_count: int


class CgroupTree(msgspec.Struct, frozen=True, kw_only=True):
    """Creates cgroups in the parent folder of each controller: ``folders`` by controller, such as "cpu" and "memory".

    ``is_unified``: this machine has cgroup version 2, so that all controllers share one folder.
    """

    folders: dict[str, Path]
    is_unified: bool

    def make(self, name: str, limits: Limits) -> tuple[tuple[str, ...], list[str]]:
        """Create the cgroup folders of a container, "POD/CONTAINER". Return the folders, and the limits not set."""
        folders: dict[Path, None] = {}
        refused: list[str] = []
        for controller, above in self.folders.items():
            folder = above / name
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                folders[folder] = None
            if self.is_unified:
                _is_enabled((folder.parent,), controller)
            for file, value, what in self._values(controller, limits):
                try:
                    (folder / file).write_text(value)
                except OSError:
                    if what:
                        refused.append(what)
        known = {controller for controller in ("cpu", "memory") if controller in self.folders}
        refused += [
            what
            for what, value in (("cpu", limits.cpu_m), ("memory", limits.memory_bytes))
            if value and what not in known
        ]
        return tuple(map(str, folders)), sorted(set(refused))

    def _values(self, controller: str, limits: Limits) -> Iterator[tuple[str, str, str]]:
        """Yield (file, value, limit) for each file to write.

        The limit, "cpu" or "memory", is reported if the write fails; with "" a failure is ignored.
        """
        quota = None if limits.cpu_m is None else max(_QUOTA_MIN_US, limits.cpu_m * _PERIOD_US // 1000)
        shares = max(_SHARES_MIN, (limits.cpu_request_m or 0) * _SHARES_PER_CORE // 1000)
        if controller == "cpu" and self.is_unified:
            if quota is not None:
                yield "cpu.max", f"{quota} {_PERIOD_US}", "cpu"
            # The kernel's formula from shares (2 to 262144) to weight (1 to 10000).
            yield "cpu.weight", str(1 + (shares - 2) * 9999 // 262142), ""
        elif controller == "cpu":
            if quota is not None:
                yield "cpu.cfs_period_us", str(_PERIOD_US), "cpu"
                yield "cpu.cfs_quota_us", str(quota), "cpu"
            yield "cpu.shares", str(shares), ""
        elif controller == "memory" and limits.memory_bytes is not None:
            text = str(limits.memory_bytes)
            if self.is_unified:
                yield "memory.max", text, "memory"
                yield "memory.swap.max", "0", ""
                yield "memory.oom.group", "1", ""
            else:
                yield "memory.limit_in_bytes", text, "memory"
                yield "memory.memsw.limit_in_bytes", text, ""
        elif controller == "pids":
            yield "pids.max", str(_PIDS_MAX), ""

    def path_of(self, name: str) -> str:
        """The path of the cgroup that a container's runtime joins; "" if it is joined before the runtime starts.

        With cgroup version 1 the process that executes the runtime joins the cgroups. With version 2 runc would move
        the container out of a cgroup that was joined before.
        """
        if not self.is_unified:
            return ""
        return "/" + str((next(iter(self.folders.values())) / name).relative_to(_ROOT))

    def views(self, name: str) -> dict[str, str]:
        """The cgroup folders that a container sees as its own, by their path in the container."""
        if self.is_unified:
            return {str(_ROOT): str(next(iter(self.folders.values())) / name)}
        return {f"{_ROOT}/{controller}": str(above / name) for controller, above in self.folders.items()}

    def read(self, name: str) -> CgroupUse | None:
        """Read the usage of a container; None without a readable cgroup."""
        try:
            if self.is_unified:
                folder = self.folders["memory"] / name
                counts = _fields(folder / "cpu.stat")
                used_bytes = (
                    int((folder / "memory.current").read_text()) - _fields(folder / "memory.stat")["inactive_file"]
                )
                killed = _fields(folder / "memory.events").get("oom_kill", 0)
                return CgroupUse(
                    cpu_s=counts["usage_usec"] / 1e6, memory_bytes=max(0, used_bytes), oom_kill_count=killed
                )
            memory = self.folders["memory"] / name
            cpu_ns = int((self.folders["cpuacct"] / name / "cpuacct.usage").read_text())
            cached = _fields(memory / "memory.stat").get("total_inactive_file", 0)
            used_bytes = int((memory / "memory.usage_in_bytes").read_text()) - cached
            # runc creates another cgroup below ours, and version 1 counts kills in each separately.
            places = (memory, *(path for path in memory.iterdir() if path.is_dir()))
            killed = sum(_fields(place / "memory.oom_control").get("oom_kill", 0) for place in places)
            return CgroupUse(cpu_s=cpu_ns / 1e9, memory_bytes=max(0, used_bytes), oom_kill_count=killed)
        except (OSError, KeyError, ValueError):
            return None

    def remove(self, pod: str) -> None:
        """Kill the remaining processes in a pod's cgroups and remove them."""
        for above in set(self.folders.values()):
            for folder, _, _ in os.walk(above / pod, topdown=False):
                with contextlib.suppress(OSError):
                    for pid in Path(folder, "cgroup.procs").read_text().split():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()

    def sweep(self, pod_ids: Collection[str]) -> None:
        """Remove cgroups of pods not in ``pod_ids``, and kill the processes left in them."""
        for above in set(self.folders.values()):
            for folder in above.iterdir():
                if folder.is_dir() and folder.name not in pod_ids:
                    self.remove(folder.name)


def limits_of(container: Object) -> Limits:
    """The limits of a container. Raises ``InvalidValue``."""
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return Limits(
        cpu_m=None if limits.get("cpu") is None else parse_millicores(str(limits["cpu"])),
        memory_bytes=None if limits.get("memory") is None else parse_bytes(str(limits["memory"])),
        cpu_request_m=None if requests.get("cpu") is None else parse_millicores(str(requests["cpu"])),
    )


class PodCgroups:
    """The cgroups of a pod's containers, also of those that run as processes. Without a ``tree`` there are none."""

    def __init__(self, tree: CgroupTree | None, pod_id: str) -> None:
        self._tree = tree
        self._pod_id = pod_id
        self._oom_kills: dict[str, int] = {}
        self.refused: dict[str, list[str]] = {}
        """The limits that no cgroup enforces, by container."""

    def make(self, name: str, limits: Limits) -> tuple[str, ...]:
        """Create the cgroup folders of a container. The container's first process joins them."""
        if self._tree is None:
            bounds = (("cpu", limits.cpu_m), ("memory", limits.memory_bytes))
            self.refused[name] = [what for what, value in bounds if value]
            return ()
        folders, self.refused[name] = self._tree.make(f"{self._pod_id}/{name}", limits)
        return folders

    def path_of(self, name: str) -> str:
        """The path of the cgroup that a container's runtime joins; "" if it is joined before the runtime starts."""
        return self._tree.path_of(f"{self._pod_id}/{name}") if self._tree else ""

    def views(self, name: str) -> dict[str, str]:
        """The cgroup folders that a container sees as its own, by their path in the container."""
        return self._tree.views(f"{self._pod_id}/{name}") if self._tree else {}

    def memory_folders(self) -> list[str]:
        """The folders in which the kernel counts OOM kills of containers."""
        above = self._tree.folders.get("memory") if self._tree else None
        return [str(above / self._pod_id / name) for name in self.refused] if above else []

    def exit_reason(self, name: str) -> str:
        """Why a container ended: OOMKilled if its count of OOM kills has increased since the previous call, else ""."""
        use = self._tree.read(f"{self._pod_id}/{name}") if self._tree else None
        if use is None:
            return ""
        before, self._oom_kills[name] = self._oom_kills.get(name, 0), use.oom_kill_count
        return OOM_KILLED_REASON if use.oom_kill_count > before else ""

    def uses(self) -> dict[str, CgroupUse]:
        """The usage of each container with cgroups."""
        uses = {name: self._tree.read(f"{self._pod_id}/{name}") for name in self.refused} if self._tree else {}
        return {name: use for name, use in uses.items() if use is not None}


def find_cgroups(name: str, *, proc: Path = Path("/proc"), cgroups: Path = _ROOT) -> CgroupTree | None:
    """Create the folder ``name`` for containers' cgroups; None if none can be created."""
    try:
        own = (proc / "self" / "cgroup").read_text()
    except OSError:
        return None
    if (cgroups / "cgroup.controllers").exists():
        return _unified(cgroups, name)
    places = places_by_controller(own, cgroups)
    folders = {kind: above / name for kind, above in places.items() if _is_made(above / name)}
    return CgroupTree(folders=folders, is_unified=False) if folders else None


def places_by_controller(own: str, cgroups: Path = _ROOT) -> dict[str, Path]:
    """With cgroup version 1: the folder of this process's cgroup by controller.

    If that folder is not visible, it is the root of the controller. ``own`` is the text of /proc/self/cgroup.
    """
    lines = [line.split(":", 2) for line in own.splitlines()]
    paths = {kind: path for _, kinds, path in lines for kind in kinds.split(",") if kind in _CONTROLLERS}
    places: dict[str, Path] = {}
    for kind, path in paths.items():
        above = next((path for path in (cgroups / kind / path.strip("/"), cgroups / kind) if path.is_dir()), None)
        if above is not None:
            places[kind] = above
    return places


def _unified(cgroups: Path, name: str) -> CgroupTree | None:
    """With cgroup version 2: create the parent folder of all pods in the root cgroup; None if this is not possible.

    Only the root cgroup may have both processes and children with limits.
    """
    folder = cgroups / name
    if not _is_made(folder):
        return None
    enabled = [kind for kind in ("cpu", "memory", "pids") if _is_enabled((cgroups, folder), kind)]
    return CgroupTree(folders=dict.fromkeys(enabled, folder), is_unified=True) if enabled else None


def _is_enabled(folders: Iterable[Path], kind: str) -> bool:
    try:
        for folder in folders:
            control = folder / "cgroup.subtree_control"
            if kind not in control.read_text().split():
                control.write_text(f"+{kind}")
    except OSError:
        return False
    return True


def _is_made(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True


def _fields(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
