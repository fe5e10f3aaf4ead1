"""Reports the usage of pods and nodes from /proc, as metrics-server does: PodMetrics and NodeMetrics.

Each container has a session, so that forked processes count too. Cpu is the usage of its processes and their ended
children since the last reading; memory is their present usage. Usage is read every 2 s while a ScalingPolicy or a
learnt target needs it, and otherwise at metrics-server's period, for ``kubectl top``. It is not journalled.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from serving.core.model.errors import AlreadyExists, ClusterError, NotFound
from serving.core.model.knative import TARGET_ANNOTATION, TargetMode
from serving.core.model.objects import Key, Object, annotations_of, labels_of
from serving.home.pods.machine import Machine, MachineReading, node_metrics, usage_of_node
from serving.net.aio.clock import now_s, stamp
from serving.net.aio.periodic import wait_for
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import NODE, NODE_METRICS, POD_METRICS, SCALING_POLICY, Kind
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import Reflector

_log = logging.getLogger("kubelet")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""Units of cpu time in /proc per second."""
# Fields of /proc/PID/stat after the name, see proc(5): utime, stime, cutime and cstime are its 14th to 17th of all.
_SESSION, _CPU_TICKS, _RSS_PAGES = 3, slice(11, 15), 21
_WATCHED_PERIOD_S = 2.0
_PERIOD_S = 15.0
_MEASURED_TYPES = frozenset({"cpu", "mem"})
# Objects written before the event loop runs other tasks.
_WRITTEN_AT_ONCE = 50

# Values of the annotation that make decisions depend on usage.
_LEARNING = ("learnt", TargetMode.USE, TargetMode.PROTECT)


class SessionTotals(msgspec.Struct, frozen=True):
    """The totals of one session (setsid(2)): CPU ticks used by its processes, and their resident memory."""

    cpu_ticks: int = 0
    resident_bytes: int = 0


class SessionUsage(msgspec.Struct, frozen=True):
    """The usage of one container in a time window: thousandths of a core, and bytes of memory."""

    cpu_m: int
    memory_bytes: int


class PodSessions(Protocol):
    """A pod whose containers can be measured."""

    @property
    def key(self) -> Key:
        """The pod's namespace and name."""
        ...

    @property
    def manifest(self) -> Object:
        """The pod's manifest at its creation, with its labels and annotations."""
        ...

    @property
    def node_name(self) -> str:
        """The node of the pod."""
        ...

    @property
    def cgroups(self) -> Mapping[str, SessionTotals]:
        """The usage by container name, from cgroups. It takes precedence over sessions."""
        ...

    @property
    def sessions(self) -> Mapping[str, int]:
        """The session id (setsid(2)) of each running container, by container name."""
        ...


def read_sessions(proc: Path = Path("/proc")) -> dict[int, SessionTotals]:
    """The totals of all sessions of this machine, by session id."""
    ticks: dict[int, int] = {}
    resident_bytes: dict[int, int] = {}
    for name in os.listdir(proc):  # noqa: PTH208 - thousands of entries, of which only names are wanted
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            fields = (proc / name / "stat").read_bytes().rpartition(b")")[2].split()
            session = int(fields[_SESSION])
            ticks[session] = ticks.get(session, 0) + sum(map(int, fields[_CPU_TICKS]))
            resident_bytes[session] = resident_bytes.get(session, 0) + int(fields[_RSS_PAGES]) * _PAGE_BYTES
    return {session: SessionTotals(taken, resident_bytes[session]) for session, taken in ticks.items()}


def _read_all(pods: Iterable[PodSessions]) -> dict[int, SessionTotals]:
    """The totals of all sessions. For a container with a cgroup, they are those of its cgroup.

    A cgroup includes processes that have left the container's session.
    """
    sessions = read_sessions()
    for pod in pods:
        own, measured = pod.sessions, pod.cgroups
        sessions |= {own[name]: totals for name, totals in measured.items() if name in own}
    return sessions


def used_between(before: SessionTotals, after: SessionTotals, *, window_s: float) -> SessionUsage:
    """The usage of a session between two readings, ``window_s`` apart.

    Example: 150 ticks of 10 ms each in 2 s are 750m. The usage is at least 0, although a total decreases when an orphan
    ends.
    """
    ticks = max(0, after.cpu_ticks - before.cpu_ticks)
    return SessionUsage(cpu_m=round(1000 * ticks / TICKS_PER_S / window_s), memory_bytes=after.resident_bytes)


def pod_metrics(pod: PodSessions, used: Mapping[str, SessionUsage], *, at: str, window_s: float) -> Object:
    """A pod's PodMetrics, as metrics-server has them."""
    containers = [
        {"name": name, "usage": {"cpu": f"{usage.cpu_m}m", "memory": f"{usage.memory_bytes // 1024}Ki"}}
        for name, usage in used.items()
    ]
    return {
        "apiVersion": POD_METRICS.api_version,
        "kind": POD_METRICS.name,
        "metadata": {"namespace": pod.key[0], "name": pod.key[1], "labels": labels_of(pod.manifest)},
        "timestamp": at,
        "window": f"{window_s:.3f}s",
        "containers": containers,
    }


def sum_metrics(name: str, used: Sequence[SessionUsage], *, at: str, window_s: float) -> Object:
    """The NodeMetrics of a node: the sum over its pods."""
    memory_bytes = sum(usage.memory_bytes for usage in used)
    amounts = {"cpu": f"{sum(usage.cpu_m for usage in used)}m", "memory": f"{memory_bytes // 1024}Ki"}
    return usage_of_node(name, amounts, at=at, window_s=window_s)


class UsageReporter:
    """Measures the usage of this machine's pods, and writes it to the store as PodMetrics and NodeMetrics.

    ``machine`` is reported as the node ``node_name``; None reports pods only. With ``is_per_node``, as for virtual
    nodes, the usage of a node is the sum over its pods, and the machine is not reported.
    """

    def __init__(
        self,
        cluster: Cluster,
        pods: Callable[[], Iterable[PodSessions]],
        *,
        machine: Machine | None = None,
        node_name: str = "local",
        is_per_node: bool = False,
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._machine = machine
        self._node_name = node_name
        self._is_per_node = is_per_node
        self._reported_nodes: set[str] = set()
        self._reading: MachineReading | None = None
        self._has_node_metrics = False
        self._policies = Reflector(cluster, SCALING_POLICY, on_change=lambda _: self._check_policies())
        self._wanted = asyncio.Event()
        self._has_learner = False
        self._at_s = 0.0
        self._sessions: dict[int, SessionTotals] = {}
        self._reported: set[Key] = set()

    async def run(self) -> None:
        """Measure periodically until cancelled."""
        async with supervise() as group:
            group.start(self._policies.run(), name="usage policies")
            # Usage is the difference of two readings: the second one follows soon.
            await self.measure()
            await asyncio.sleep(_WATCHED_PERIOD_S)
            while True:
                await self.measure()
                await wait_for(self._wanted, until_s=now_s() + _PERIOD_S)
                # A new subscriber needs a window rather than a moment.
                await asyncio.sleep(max(0.0, self._at_s + _WATCHED_PERIOD_S - now_s()))

    async def measure(self) -> None:
        """Measure once. Report the usage of every pod that was measured before."""
        pods = list(self._pods())
        # It reads a file for each process of the machine.
        sessions = await asyncio.to_thread(_read_all, pods) if pods else {}
        at_s, at = now_s(), stamp()
        window_s, before = at_s - self._at_s, self._sessions
        self._at_s = at_s
        self._sessions = sessions
        by_node: dict[str, list[SessionUsage]] = {}
        if not self._is_per_node:
            await self._report_node(at, window_s)
        reported: set[Key] = set()
        for number, pod in enumerate(list(self._pods())):
            used = {
                name: used_between(before[session], sessions[session], window_s=window_s)
                for name, session in pod.sessions.items()
                if session in before and session in sessions
            }
            by_node.setdefault(pod.node_name, []).extend(used.values())
            if used and await self._write(
                POD_METRICS, pod_metrics(pod, used, at=at, window_s=window_s), is_there=pod.key in self._reported
            ):
                reported.add(pod.key)
            if number % _WRITTEN_AT_ONCE == 0:
                await asyncio.sleep(0)
        for key in self._reported - reported:
            with contextlib.suppress(NotFound):
                await self._cluster.delete(POD_METRICS, *key)
        self._reported = reported
        self._has_learner = any(
            annotations_of(pod.manifest).get(TARGET_ANNOTATION) in _LEARNING for pod in self._pods()
        )
        self._check_policies()
        if self._is_per_node:
            await self._report_nodes(by_node, at, window_s)

    async def _report_nodes(self, by_node: Mapping[str, Sequence[SessionUsage]], at: str, window_s: float) -> None:
        """Report the summed usage of each node's pods."""
        names = {node["metadata"]["name"] for node in (await self._cluster.list(NODE)).items}
        for name in names:
            metrics = sum_metrics(name, by_node.get(name, ()), at=at, window_s=window_s)
            await self._write(NODE_METRICS, metrics, is_there=name in self._reported_nodes)
        for name in self._reported_nodes - names:
            with contextlib.suppress(NotFound):
                await self._cluster.delete(NODE_METRICS, "", name)
        self._reported_nodes = names

    async def _report_node(self, at: str, window_s: float) -> None:
        if self._machine is None:
            return
        before, self._reading = self._reading, await asyncio.to_thread(self._machine.read)
        if before is not None:
            metrics = node_metrics(self._node_name, before, self._reading, at=at, window_s=window_s)
            self._has_node_metrics = await self._write(NODE_METRICS, metrics, is_there=self._has_node_metrics)

    async def _write(self, kind: Kind, metrics: Object, *, is_there: bool) -> bool:
        """Write a PodMetrics or NodeMetrics; return whether it exists now. ``is_there``: it existed before."""
        try:
            if is_there:
                await self._cluster.replace(kind, metrics)
            else:
                await self._cluster.create(kind, metrics)
        except AlreadyExists:
            # Created by hand: the next round replaces it.
            return True
        except ClusterError as error:
            # Deleted by hand, or with its namespace: the next round creates it again if a pod exists.
            _log.debug("usage.untold", extra={"object": metrics["metadata"]["name"], "error": str(error)})
            return False
        return True

    def _check_policies(self) -> None:
        is_wanted = self._has_learner or any(_needs_usage(policy) for policy in self._policies.cache.values())
        (self._wanted.set if is_wanted else self._wanted.clear)()


def _needs_usage(policy: Mapping[str, Any]) -> bool:
    spec = policy.get("spec") or {}
    directions = (spec.get("up") or {}, spec.get("down") or {})
    return any(trigger.get("type") in _MEASURED_TYPES for way in directions for trigger in way.get("triggers") or ())
