"""The control plane in one process on virtual time: store, controllers, autoscaler, activator, kubelet, clients.

All decisions and all daemons' loops are the product's own; sockets, processes and containers are not there. One seed
draws the faults, the crashes, the users' changes and the requests, so it makes the same run each time.
"""

import asyncio
import contextlib
import functools
import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

from serving.autoscaler.io.autoscaler import Autoscaler
from serving.controller.io.controller import Controller
from serving.core.model.errors import ClusterError, NotFound
from serving.core.model.objects import Object, name_of
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.controllers.garbage import collect_garbage
from serving.home.controllers.manager import Manager
from serving.home.controllers.scheduler import NodePlacing, PodScheduler
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.kinds import NODE, POD, SERVING_SERVICE
from serving.net.cluster.leases.holder import Leader
from serving.net.cluster.leases.lease import LeaseClient, LeaseName
from serving.net.cluster.leases.rules import LeaseTimes
from tests.simulation.activator import SimulatedActivator, SimulatedRequest
from tests.simulation.node import SimulatedNode
from tests.simulation.unreliable import Faults, UnreliableCluster

EPOCH_S = 1_900_000_000.0
"""The time since the epoch at which each run begins."""
REPLICAS = ("controller", "controller-2")
NODE_COUNT, PODS_PER_NODE = 3, 3
_RESTART_MAX_S = 3.0
_HARD_KILL = 0.5
# Half as many checks as by default, because each one costs time here.
_LEASE_TIMES = LeaseTimes(retry_period_s=4.0)
# Three of them fit on a node.
_CONTAINER: Object = {"image": "x", "resources": {"requests": {"cpu": "300m"}}}


class World:
    """Everything, wired. ``requests`` are all of the run; ``story`` lists the faults, for a failure's message."""

    def __init__(self, seed: int, *, policy: str = KNATIVE_POLICY) -> None:
        self.dice = random.Random(seed)
        self.scaling = AutoscalerSettings(policy=policy)
        self.faults = Faults()
        self.store = MemoryCluster(admit=admit, dice=random.Random(seed), wall_s=lambda: EPOCH_S + now_s())
        self.node = SimulatedNode(UnreliableCluster(self.store, self.faults, self.dice), self.dice)
        self.requests: list[SimulatedRequest] = []
        self.story: list[str] = []
        self.faults_found: list[str] = []
        self.leaders: dict[str, Leader] = {}
        self.activator: SimulatedActivator | None = None
        self.autoscaler: Autoscaler | None = None
        # Per controller replica: whether only this replica has lost the store.
        self._cut_off = {name: Faults() for name in REPLICAS}
        self._process_numbers = itertools.count(1)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._daemons: dict[str, Callable[[], Awaitable[None]]] = {
            **{name: functools.partial(self._run_controller, name) for name in REPLICAS},
            "manager": self._run_manager,
            "autoscaler": self._run_autoscaler,
            "activator": self._run_activator,
        }

    @contextlib.asynccontextmanager
    async def running(self) -> Any:  # noqa: ANN401 - an async iterator
        """All parts at work until the end of the context."""
        asyncio.get_running_loop().set_task_factory(_numbered)  # type: ignore[arg-type] # its protocol names no options
        async with asyncio.TaskGroup() as group:
            self._group = group
            for number in range(1, NODE_COUNT + 1):
                await _add_node(self.store, f"node-{number}")
            beside = [
                group.create_task(collect_garbage(self.store)),
                group.create_task(self.node.run()),
                group.create_task(self._report_pods()),
            ]
            for name in self._daemons:
                self._start(name)
            try:
                yield
            finally:
                for task in (*beside, *self._tasks.values()):
                    task.cancel()
        await self.store.close()

    def report(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{now_s():7.2f} {text}")

    def crash(self) -> None:
        """Kill one daemon; another process replaces it a moment later."""
        assert self._group is not None
        name = self.dice.choice(sorted(self._daemons))
        self.report(f"{name} is killed")
        if name in self._cut_off and self.dice.random() < _HARD_KILL:
            # Killed, so it cannot release its lease.
            self._cut_off[name].partitioned_until_s = math.inf
        self._tasks[name].cancel()
        self._group.create_task(self._restart(name))

    def cut_off(self, name: str, seconds: float) -> None:
        """Disconnect one controller replica from the store."""
        self.report(f"{name} alone has no store for {seconds:.1f} s")
        self._cut_off[name].partitioned_until_s = now_s() + seconds

    async def drain(self, number: int) -> None:
        """Cordon a node and evict its pods, as `kubectl drain` does."""
        name = f"node-{number}"
        self.report(f"{name} is drained")
        await self.store.patch(NODE, "", name, patch={"spec": {"unschedulable": True}})
        for pod in (await self.store.list(POD, field_selector=f"spec.nodeName={name}")).items:
            with contextlib.suppress(ClusterError):
                await self.store.evict("default", name_of(pod))

    async def uncordon(self) -> None:
        """Make all nodes schedulable."""
        for node in (await self.store.list(NODE)).items:
            await self.store.patch(NODE, "", name_of(node), patch={"spec": {"unschedulable": False}})

    def send(self, service: str, *, took_s: float) -> None:
        """Send a client's request; without an activator it is rejected immediately."""
        request = SimulatedRequest(f"{service}.default.localhost", took_s=took_s, at_s=now_s())
        self.requests.append(request)
        if self.activator is None:
            request.outcome, request.ended_s = "refused", now_s()
        else:
            self.activator.handle(request)

    async def apply(self, name: str, change: Callable[[Object], None]) -> None:
        """Create or change a service as its user, with retries after failures of the store."""
        while True:
            try:
                before = await self.store.get(SERVING_SERVICE, "default", name)
            except NotFound:
                manifest: Object = {
                    "apiVersion": "serving.knative.dev/v1",
                    "kind": "Service",
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"template": {"metadata": {"annotations": {}}, "spec": {"containers": [dict(_CONTAINER)]}}},
                }
                change(manifest)
                with contextlib.suppress(ClusterError):
                    await self.store.create(SERVING_SERVICE, manifest)
                    return
            else:
                change(before)
                with contextlib.suppress(ClusterError):
                    await self.store.replace(SERVING_SERVICE, before)
                    return
            await asyncio.sleep(0.01)

    def _start(self, name: str) -> None:
        assert self._group is not None
        self._tasks[name] = self._group.create_task(_until_killed(self._daemons[name]()), name=name)

    async def _restart(self, name: str) -> None:
        await asyncio.wait([self._tasks[name]])
        await asyncio.sleep(self.dice.uniform(0.0, _RESTART_MAX_S))
        if self._tasks[name].done():
            self._start(name)

    def _port(self) -> UnreliableCluster:
        return UnreliableCluster(self.store, self.faults, self.dice)

    async def _run_controller(self, name: str) -> None:
        """One of two replicas. The holder of the lease works; the other takes over."""
        self._cut_off[name] = Faults()
        port = UnreliableCluster(self._port(), self._cut_off[name], self.dice)
        lease = LeaseClient(port, LeaseName(namespace="knative-serving", name="controller"))
        me = f"{name}_{next(self._process_numbers)}"
        leader = self.leaders[name] = Leader(lease, me, times=_LEASE_TIMES)
        fenced = FencedCluster(port, functools.partial(self._check, name))
        stop = asyncio.Event()
        try:
            await leader.run(lambda: Controller(fenced, settings=ControllerSettings()).run(stop), stop)
        finally:
            del self.leaders[name]

    def _check(self, name: str) -> None:
        """Assert before each write of a replica that only this replica leads."""
        self.leaders[name].check()
        for other, leader in self.leaders.items():
            if other != name and leader.is_leading:
                self.faults_found.append(f"{name} writes while {other} leads")

    async def _run_manager(self) -> None:
        """Run the controllers as in the control daemon, which also contains the store."""
        port = UnreliableCluster(self.store, self.faults, self.dice, is_beside_store=True)
        scheduler = PodScheduler(port, NodePlacing("spread"))
        async with asyncio.TaskGroup() as group:
            group.create_task(scheduler.run())
            group.create_task(Manager(port, scheduler).run())

    async def _run_autoscaler(self) -> None:
        async def prove() -> bool:
            return self.activator is not None

        self.autoscaler = Autoscaler(self._port(), settings=self.scaling, prove=prove)
        try:
            await self.autoscaler.run(asyncio.Event())
        finally:
            self.autoscaler = None
            if self.activator is not None:
                # Its connection is lost; the next autoscaler gets all reports again.
                self.activator.router.resend_all()

    async def _run_activator(self) -> None:
        def report(key: Any, load: Any) -> None:  # noqa: ANN401 - of the activator's own types
            if self.autoscaler is not None:
                stat = Stat(
                    pod="activator", at_s=now_s(), concurrency=load.concurrency, request_count=load.request_count
                )
                self.autoscaler.record(key, stat, StatSource.ACTIVATOR)

        self.activator = SimulatedActivator(self._port(), self.node, self.dice, report)
        try:
            await self.activator.run()
        finally:
            self.activator = None

    async def _report_pods(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for pod in list(self.node.pods.values()):
                if self.autoscaler is None or not pod.is_alive:
                    continue
                load, count = float(len(pod.inside)), float(pod.arrived_count)
                pod.arrived_count = 0
                stat = Stat(
                    pod=pod.name,
                    at_s=now_s(),
                    concurrency=load,
                    proxied_concurrency=load,
                    request_count=count,
                    proxied_request_count=count,
                )
                self.autoscaler.record(pod.revision, stat, StatSource.POD)


async def _add_node(store: MemoryCluster, name: str) -> None:
    amounts = {"cpu": "1", "memory": "8Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    await store.create(NODE, {"metadata": {"name": name}, "spec": {}})
    await store.patch(NODE, "", name, patch={"status": status}, subresource="status")


class _NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set follows its number and not its address: sets of tasks are walked when they are cancelled."""

    _numbers = itertools.count()

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - asyncio's own
        self._number = next(_NumberedTask._numbers)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _numbered(loop: asyncio.AbstractEventLoop, body: Coroutine[Any, Any, Any], **options: Any) -> _NumberedTask:  # noqa: ANN401
    return _NumberedTask(body, loop=loop, **options)


async def _until_killed(body: Awaitable[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await body


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make all randomness and the wall clock follow the seed and virtual time."""
    numbers = itertools.count(seed * 1_000_003)
    real = random.Random

    class Seeded(real):  # type: ignore[valid-type, misc] # the class of the standard library
        """A generator seeded by the order of construction, unless it gets a seed."""

        def __init__(self, own_seed: object = None) -> None:
            super().__init__(next(numbers) if own_seed is None else own_seed)

    def loop_s() -> float:
        return asyncio.get_running_loop().time()

    def wall_s() -> float:
        return EPOCH_S + loop_s()

    def clock_s(_: int) -> float:
        return loop_s()

    state = random.getstate()
    random.seed(seed)
    _NumberedTask._numbers = itertools.count()
    try:
        with (
            mock.patch.object(random, "Random", Seeded),
            mock.patch.object(time, "time", wall_s),
            mock.patch.object(time, "clock_gettime", clock_s),
            # Shares of a turn and the measured time of a call would follow the machine.
            mock.patch.object(time, "perf_counter", loop_s),
        ):
            yield
    finally:
        random.setstate(state)
