"""The node group daemon under random faults of store and cloud: its rules hold, and it recovers.

Each example is a world of its own with a seed: pods come and go, calls of the API and of the cloud fail before or after
they act, the process is killed between any two calls, the lease is lost. The world checks each machine that is deleted
and each growth at the moment it is asked for. When the failures end, the group settles.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.errors import CloudUnavailable, Conflict, NotFound, NotLeading, Unavailable
from serving.core.model.objects import Object, name_of, nested
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import NODE, POD
from serving.net.cluster.port import Delete, Patch, Write
from serving.nodes.nodegroup.cloud import CloudMachine, Deletion
from serving.nodes.nodegroup.facts import node_of
from serving.nodes.nodegroup.io.clouds.memory import MemoryCloud
from serving.nodes.nodegroup.records import CloudGroup
from serving.nodes.nodegroup.states import partition
from tests.integration.nodegroup_stage import BEGIN_S, NodeGroupStage
from tests.virtual_time import run_virtually

MIN_NODES, MAX_NODES = 1, 6
SOFT_S, HARD_S, DRAIN_S, COOL_DOWN_S = 60, 120, 60, 60
PASS_S = 30.0
PASSES, CALM_PASSES = 20, 30
SPEC: dict[str, Any] = {
    "minNodes": MIN_NODES,
    "maxNodes": MAX_NODES,
    "softDeleteGracePeriod": f"{SOFT_S}s",
    "hardDeleteGracePeriod": f"{HARD_S}s",
    "drainGracePeriod": f"{DRAIN_S}s",
    "scaleUpCoolDownPeriod": f"{COOL_DOWN_S}s",
    "scaleUpRetry": "60s",
    "scaleUpRetryMax": "60s",
    "scaleOnStarve": True,
}


class Killed(Exception):
    """The process ended between two calls."""


class Weather:
    """The times at which calls fail; ``is_calm`` ends them."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.is_calm = False
        self.has_lease = True

    def strike(self) -> None:
        """Fail at random."""
        if self.is_calm:
            return
        chance = self.dice.random()
        if chance < 0.02:
            raise Killed
        if chance < 0.06:
            raise Unavailable("the API server does not answer")
        if chance < 0.08:
            raise Conflict("the object has been modified")

    def check(self) -> None:
        """Check the lease."""
        if not self.has_lease:
            raise NotLeading("nodegroup")


class FlakyCluster(MemoryCluster):
    """Calls of the daemon fail before or after they act; ``is_daemon`` marks its calls."""

    weather: Weather
    is_daemon = False

    async def write(self, write: Write) -> Object:
        if not self.is_daemon or not isinstance(write, Patch | Delete):
            return await super().write(write)
        self.weather.check()
        self.weather.strike()
        done = await super().write(write)
        self.weather.strike()
        return done


class WatchedCloud(MemoryCloud):
    """A failing cloud that checks each growth and deletion against the rules."""

    def __init__(self, cluster: FlakyCluster, weather: Weather) -> None:
        super().__init__({"asg": CloudGroup(target_size=2, min_size=0, max_size=20)})
        self.cluster, self.weather = cluster, weather
        self.now_s: Callable[[], float] = lambda: BEGIN_S

    async def increase(self, group: str, count: int) -> None:
        self._strike()
        nodes = [node_of(node) for node in (await self.cluster.list(NODE)).items]
        coming = max(0, self.groups[group].target_size - len(nodes))
        assert len(partition(nodes).untainted) + coming + count <= MAX_NODES, "growth beyond the maximum"
        assert self.weather.has_lease, "growth without the lease"
        await super().increase(group, count)
        self._strike()

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        self._strike()
        assert self.weather.has_lease, "deletion without the lease"
        pods = (await self.cluster.list(POD)).items
        for machine in machines:
            node = node_of(await self.cluster.get(NODE, "", machine.node_name))
            assert not node.is_protected, "deletion of a protected node"
            assert not node.is_cordoned, "deletion of a cordoned node"
            assert node.removal_taint is not None, "deletion of a node that is not tainted"
            assert node.removal_taint.at_s is not None
            age_s = self.now_s() - node.removal_taint.at_s
            on_it = [pod for pod in pods if nested(pod, "spec", "nodeName") == node.name]
            assert age_s > SOFT_S, "deletion within the soft grace"
            assert not on_it or age_s > HARD_S + DRAIN_S, "deletion of a node with pods"
        deletion = await super().delete(group, machines)
        self._strike()
        return deletion

    def _strike(self) -> None:
        try:
            self.weather.strike()
        except (Unavailable, Conflict) as error:
            raise CloudUnavailable(str(error)) from error


class World:
    """Pods appear and vanish, machines become nodes, pods get places."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.weather = Weather(self.dice)
        stages: list[NodeGroupStage] = []
        self.cluster = FlakyCluster(wall_s=lambda: stages[0].now_s if stages else BEGIN_S)
        self.cluster.weather = self.weather
        self.cloud = WatchedCloud(self.cluster, self.weather)
        self.stage = NodeGroupStage(self.cluster, self.cloud)
        stages.append(self.stage)
        self.stage.check = self.weather.check
        self.cloud.now_s = lambda: self.stage.now_s
        self.count = 0

    async def begin(self) -> None:
        await self.stage.group(**SPEC)
        await self.settle_machines()
        await self.stage.restart()

    async def settle_machines(self) -> None:
        """Turn machines into nodes; one may be cordoned or protected."""
        missing = self.cloud.groups["asg"].target_size - len(await self.stage.names())
        for _ in range(missing):
            self.count += 1
            annotations = {"atlassian.com/no-delete": "yes"} if self.dice.random() < 0.1 else {}
            await self.stage.node(f"n{self.count}", annotations=annotations)
        gone = await self.orphans()
        for name in gone:
            await self.cluster.delete(NODE, "", name)

    async def orphans(self) -> list[str]:
        """Nodes without a machine; a cloud controller removes them later."""
        deleted = {name for _, names in self.cloud.deletions for name in names}
        return [name for name in await self.stage.names() if name in deleted] if self.dice.random() < 0.5 else []

    async def move_pods(self) -> None:
        """Delete some pods, create some, and place pending ones."""
        pods = (await self.cluster.list(POD)).items
        nodes = {name_of(node) for node in (await self.cluster.list(NODE)).items}
        for pod in pods:
            on = nested(pod, "spec", "nodeName")
            if self.dice.random() < 0.25 or (on and on not in nodes) or "deletionTimestamp" in pod["metadata"]:
                try:
                    await self.cluster.delete(POD, "default", name_of(pod), grace_s=0)
                except NotFound:
                    continue
        free = [node_of(node) for node in (await self.cluster.list(NODE)).items]
        places = [node.name for node in partition(free).untainted]
        for _ in range(self.dice.choice((0, 0, 2, 8))):
            self.count += 1
            on = self.dice.choice(places) if places and self.dice.random() < 0.7 else ""
            await self.stage.pod(f"p{self.count}", on=on, cpu="900m")

    async def step(self) -> None:
        """Run a pass of the daemon, which may be killed."""
        self.weather.has_lease = self.weather.is_calm or self.dice.random() > 0.05
        before = len(partition([node_of(node) for node in (await self.cluster.list(NODE)).items]).untainted)
        await self.stage._seen_all()
        self.stage.now_s += PASS_S
        self.cluster.is_daemon = True
        try:
            await self.stage.passes.run_once()
        except* (Killed, NotLeading):
            self.cluster.is_daemon = False
            await self.stage.restart()
        finally:
            self.cluster.is_daemon = False
        after = len(partition([node_of(node) for node in (await self.cluster.list(NODE)).items]).untainted)
        assert after >= min(before, MIN_NODES), "tainted below the minimum"


async def live(seed: int) -> None:
    world = World(seed)
    await world.begin()
    for _ in range(PASSES):
        await world.step()
        await world.settle_machines()
        await world.move_pods()
    world.weather.is_calm = True
    for pod in (await world.cluster.list(POD)).items:
        await world.cluster.delete(POD, "default", name_of(pod), grace_s=0)
    for _ in range(CALM_PASSES):
        await world.step()
        await world.settle_machines()
    nodes = [node_of(node) for node in (await world.cluster.list(NODE)).items]
    parts = partition(nodes)
    assert len(parts.untainted) == MIN_NODES, "an idle group does not settle at its minimum"
    assert all(node.is_protected for node in parts.tainted), "a node that could go is still there"
    assert world.cloud.groups["asg"].target_size == len(nodes), "machines without nodes"
    await world.stage.stop()
    await world.cluster.close()


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_node_group_rules_hold_under_faults_and_the_group_settles(seed: int) -> None:
    run_virtually(asyncio.wait_for(live(seed), timeout=3600))
