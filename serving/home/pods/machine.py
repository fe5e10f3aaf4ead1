"""Reads this machine's capacity, allocatable and usage, from /proc and our cgroup.

The capacity is all of its cores and memory. The allocatable is lower if a cgroup (version 2) or a CPU affinity limits
us. Usage is measured at that limit: in our cgroup, or on the cores that we may use and in the memory of the machine.
Nothing is reserved for our own daemons.
"""

import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from serving.core.model.objects import Object
from serving.net.aio.machinememory import CGROUPS, amounts_of, cgroup_folders, held_bytes, memory_bound
from serving.net.cluster.kinds import NODE_METRICS

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of a /proc/stat line after its name, see proc_stat(5): user, nice and system; irq and softirq. Stolen time
# is not our use, and guests are within user.
_BUSY = (0, 1, 2, 5, 6)
# "max" in a cgroup's file.
_NO_BOUND = math.inf


class MachineReading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading: cumulative CPU seconds, and memory in use."""

    cpu_s: float
    memory_bytes: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of this machine, the part allocatable to pods, and where to read its usage.

    ``cores`` are the numbers of the usable cores. ``cpu_cgroup`` and ``memory_cgroup`` are the cgroups that limit this
    process; None if there is no limit.
    """

    cpu_m: int
    memory_bytes: int
    allocatable_cpu_m: int
    allocatable_memory_bytes: int
    cores: frozenset[int]
    cpu_cgroup: Path | None = None
    memory_cgroup: Path | None = None

    def read(self, proc: Path = Path("/proc")) -> MachineReading:
        """Read the current usage. Raises ``OSError`` if this is not Linux."""
        if self.cpu_cgroup is None:
            cpu_s = _busy_s((proc / "stat").read_text(), self.cores)
        else:
            cpu_s = amounts_of(self.cpu_cgroup / "cpu.stat")["usage_usec"] / 1e6
        if self.memory_cgroup is None:
            amounts = amounts_of(proc / "meminfo")
            used_bytes = (amounts["MemTotal"] - amounts["MemAvailable"]) * 1024
        else:
            used_bytes = held_bytes(self.memory_cgroup)
        return MachineReading(cpu_s=cpu_s, memory_bytes=used_bytes)


def read_machine(
    proc: Path = Path("/proc"), cgroups: Path = CGROUPS, *, cores: Collection[int] | None = None
) -> Machine:
    """Read this machine. Raises ``OSError`` if this is not Linux.

    ``cores`` are the numbers of the cores that this process may use; by default they are its CPU affinity.
    """
    cores = frozenset(os.sched_getaffinity(0) if cores is None else cores)
    cpu_m = 1000 * sum(line[:3] == "cpu" and line[3].isdecimal() for line in (proc / "stat").read_text().splitlines())
    memory_bytes = amounts_of(proc / "meminfo")["MemTotal"] * 1024
    folders = cgroup_folders(proc, cgroups)
    cpu_bound_m, cpu_cgroup = min(((_cpu_max_m(folder), folder) for folder in folders), default=(_NO_BOUND, None))
    bound, memory_cgroup = min(((memory_bound(folder), folder) for folder in folders), default=(_NO_BOUND, None))
    allocatable_cpu_m, allocatable_bytes = 1000 * len(cores), memory_bytes
    return Machine(
        cpu_m=cpu_m,
        memory_bytes=memory_bytes,
        allocatable_cpu_m=int(min(cpu_bound_m, allocatable_cpu_m)),
        allocatable_memory_bytes=int(min(bound, allocatable_bytes)),
        cores=cores,
        cpu_cgroup=cpu_cgroup if cpu_bound_m < allocatable_cpu_m else None,
        memory_cgroup=memory_cgroup if bound < allocatable_bytes else None,
    )


def node_status(machine: Machine, *, at: str) -> Object:
    """The status of a Node that is this machine, ready since ``at``."""
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": at}
    return {
        "capacity": _amounts(machine.cpu_m, machine.memory_bytes),
        "allocatable": _amounts(machine.allocatable_cpu_m, machine.allocatable_memory_bytes),
        "conditions": [condition],
    }


def node_metrics(name: str, before: MachineReading, after: MachineReading, *, at: str, window_s: float) -> Object:
    """The NodeMetrics between two readings. 3 s of CPU within 2 s are 1500m."""
    cpu_m = round(1000 * max(0.0, after.cpu_s - before.cpu_s) / window_s)
    return usage_of_node(name, _amounts(cpu_m, after.memory_bytes), at=at, window_s=window_s)


def usage_of_node(name: str, usage: Mapping[str, str], *, at: str, window_s: float) -> Object:
    """The NodeMetrics of a node with this usage."""
    return {
        "apiVersion": NODE_METRICS.api_version,
        "kind": NODE_METRICS.name,
        "metadata": {"name": name},
        "timestamp": at,
        "window": f"{window_s:.3f}s",
        "usage": usage,
    }


def _amounts(cpu_m: int, memory_bytes: int) -> dict[str, str]:
    return {"cpu": f"{cpu_m}m" if cpu_m % 1000 else f"{cpu_m // 1000}", "memory": f"{memory_bytes // 1024}Ki"}


def _busy_s(stat: str, cores: Collection[int]) -> float:
    ticks = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in cores:
            ticks += sum(int(fields[place]) for place in _BUSY)
    return ticks / _TICKS_PER_S


def _cpu_max_m(folder: Path) -> float:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return _NO_BOUND
    return _NO_BOUND if quota == "max" else 1000 * int(quota) / int(period)
