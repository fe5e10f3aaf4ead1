"""One run: users change services and send requests under faults; then faults stop, and everything is checked."""

import asyncio
import itertools
from collections.abc import Callable

import msgspec

from serving.core.model.errors import ClusterError
from serving.core.model.objects import Object
from serving.core.settings.autoscaler import KNATIVE_POLICY
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import SERVING_SERVICE
from tests.simulation.invariants import at_rest, watched
from tests.simulation.world import NODE_COUNT, REPLICAS, World, seeded
from tests.virtual_time import run_virtually

_SERVICES = ("one", "two")
# What happens, and how often.
_USERS = {"requests": 50, "deploy": 6, "delete": 1}
_FAULTS = {"crash": 6, "kill": 4, "partition": 3, "cut off": 3, "drain": 2, "uncordon": 4, "worsen": 8, "heal": 8}
STORM_S = 60.0
"""How long faults come and go, unless said otherwise."""
# The longest wait of a request, the stable window and retries; less than the controller's resync, which would repair
# faults.
_CALM_S = 450.0
_CHECKED_EVERY_S = 5.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Violations, none if everything held; the events; the store's writes and the answered requests."""

    faults: list[str]
    story: list[str]
    version: str
    response_count: int


def play(seed: int, *, storm_s: float = STORM_S, policy: str = KNATIVE_POLICY) -> Outcome:
    """Run a seed, with faults for so many seconds."""
    with seeded(seed):
        return run_virtually(_play(seed, storm_s, policy))


async def _play(seed: int, storm_s: float, policy: str) -> Outcome:
    world = World(seed, policy=policy)
    faults = world.faults_found
    async with world.running():
        checking = asyncio.create_task(watched(world, faults.append))
        await _storm(world, storm_s)
        await _calm(world)
        faults += await _until_at_rest(world)
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        version = (await world.store.list(SERVING_SERVICE)).resource_version
    answered = sum(request.outcome == "200" for request in world.requests)
    return Outcome(faults=faults, story=world.story, version=version, response_count=answered)


async def _storm(world: World, storm_s: float) -> None:
    dice = world.dice
    await world.apply("one", _changed(world, 1))
    generations = itertools.count(2)
    while now_s() < storm_s:
        await asyncio.sleep(dice.expovariate(2.0))
        what = dice.choices([*_USERS, *_FAULTS], weights=[*_USERS.values(), *_FAULTS.values()])[0]
        if what in _FAULTS:
            await _fail(world, what)
            continue
        name = dice.choice(_SERVICES)
        if what == "requests":
            took_s = dice.expovariate(1.0)
            for _ in range(dice.randint(1, 20)):
                world.send(name, took_s=took_s)
        elif what == "deploy":
            number = next(generations)
            world.report(f"deploy {name}, version {number}")
            await world.apply(name, _changed(world, number))
        else:
            world.report(f"delete {name}")
            await _deleted(world, name)


async def _fail(world: World, what: str) -> None:
    dice = world.dice
    match what:
        case "crash":
            world.crash()
        case "kill":
            world.report("a pod is killed")
            world.node.kill()
        case "partition":
            world.faults.partitioned_until_s = now_s() + dice.uniform(1.0, 15.0)
            world.report(f"the store is away until {world.faults.partitioned_until_s:.1f}")
        case "cut off":
            world.cut_off(dice.choice(REPLICAS), dice.uniform(1.0, 30.0))
        case "drain":
            await world.drain(dice.randint(1, NODE_COUNT))
        case "uncordon":
            await world.uncordon()
        case "worsen":
            _worsen(world)
        case _:
            _heal(world)


def _worsen(world: World) -> None:
    dice, faults = world.dice, world.faults
    faults.refused, faults.response_lost = dice.uniform(0, 0.3), dice.uniform(0, 0.2)
    faults.slow, faults.repeated, faults.watch_ended = dice.uniform(0, 0.2), dice.uniform(0, 0.3), dice.uniform(0, 0.1)
    world.report(f"it gets worse: {faults}")


def _heal(world: World) -> None:
    faults = world.faults
    faults.refused = faults.response_lost = faults.slow = faults.repeated = faults.watch_ended = 0.0


def _changed(world: World, number: int) -> Callable[[Object], None]:
    maximum = world.dice.choice(("0", "1", "3", "10"))
    minimum = "0" if maximum == "1" else world.dice.choice(("0", "0", "1"))
    limit = world.dice.choice((0, 1, 5))

    def change(service: Object) -> None:
        template = service["spec"]["template"]
        template["metadata"] = {
            "annotations": {"autoscaling.knative.dev/max-scale": maximum, "autoscaling.knative.dev/min-scale": minimum}
        }
        template["spec"]["containers"][0]["env"] = [{"name": "VERSION", "value": str(number)}]
        template["spec"]["containerConcurrency"] = limit

    return change


async def _deleted(world: World, name: str) -> None:
    try:
        await world.store.delete(SERVING_SERVICE, "default", name)
    except ClusterError:
        return


async def _calm(world: World) -> None:
    _heal(world)
    world.faults.partitioned_until_s = 0.0
    await world.uncordon()
    world.report("all is calm")


async def _until_at_rest(world: World) -> list[str]:
    """Violations at rest; checked repeatedly, so that most runs end early."""
    until_s = now_s() + _CALM_S
    while True:
        await asyncio.sleep(_CHECKED_EVERY_S)
        at_rests = await at_rest(world)
        if not at_rests or now_s() > until_s:
            return at_rests
