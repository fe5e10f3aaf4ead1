"""How long a start from zero takes, from the flip at the activator to the slice.

    python bench/control_latency.py [--services N] [--quick] [--json]

Real daemons as processes against an API server: that of SERVING_TEST_KUBECONFIG, or our own. N services go to zero, then
each gets one request, one after the other. Times are those at which one watcher sees each change, so that the way of a
change to a watcher is in none of the differences. "asked" is from the request to the Deployment's scale, "scale" from Revision
Active to it; goal: at most 15 ms at the median. It may be below zero: flip and poke go out side by side. "slice" is from the pod's readiness to its slice, which our
manager makes here and the controller-manager elsewhere. Pods say that they are ready at once.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.parts.program import exit_code, options_of, show
from serving.core.model.objects import Object, is_true
from serving.net.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, POD, REVISION, Kind
from tests.cluster_e2e.server import SPACE
from tests.cluster_e2e.stage import Stage, of_objects, service, staged

SCALE_GOAL_MS = 15.0
_WAKE_S = 20.0
_LABEL = "serving.knative.dev/revision"
_KINDS = {"active": REVISION, "scale": DEPLOYMENT, "pod": POD, "slice": ENDPOINT_SLICE}

Seen = dict[tuple[str, str], float]
"""When each step of each revision was seen first."""


def step_of(kind: Kind, one: Object) -> str:
    """The revision of an object whose step is done; "" if it is not."""
    metadata = one["metadata"]
    revision: str = metadata["name"] if kind == REVISION else (metadata.get("labels") or {}).get(_LABEL, "")
    if kind == REVISION:
        is_done = one["spec"].get("servingState") == "Active"
    elif kind == DEPLOYMENT:
        is_done = one["spec"]["replicas"] > 0
    elif kind == POD:
        is_done = is_true(one, "Ready")
    else:
        is_done = any(item["conditions"].get("ready") for item in one.get("endpoints") or ())
    return revision if is_done else ""


async def follow(stage: Stage, step: str, seen: Seen, came: asyncio.Event) -> None:
    """Note when each step is seen."""
    kind = _KINDS[step]
    listing = await stage.cluster.list(kind, SPACE)
    async with stage.cluster.watch(kind, SPACE, resource_version=listing.resource_version) as events:
        async for event in of_objects(events):
            revision = step_of(kind, event.object)
            if revision:
                seen.setdefault((step, revision), time.perf_counter())
                came.set()


async def send_request(port: int, name: str) -> None:
    """A request for a service at zero; its pod has no address that answers."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET / HTTP/1.1\r\nHost: {name}.{SPACE}.localhost\r\n\r\n".encode())
    await writer.drain()
    await asyncio.sleep(_WAKE_S)
    writer.close()


async def measure(count: int, folder: Path) -> dict[str, dict[str, float]]:
    """All services once."""
    names = [f"late-{number}" for number in range(count)]
    async with staged(folder) as stage:
        for name in names:
            await stage.apply(service(name))
        for name in names:
            await stage.ready(name)
            stage.load(f"{name}-00001", 0)
        for name in names:
            await stage.scaled(f"{name}-00001", 0, within_s=60)
        await stage.until_none(POD)
        seen: Seen = {}
        came = asyncio.Event()
        tasks = [asyncio.create_task(follow(stage, step, seen, came)) for step in _KINDS]
        await asyncio.sleep(1.0)
        for name in names:
            seen["asked", f"{name}-00001"] = time.perf_counter()
            tasks.append(asyncio.create_task(send_request(stage.port("public"), name)))
            async with asyncio.timeout(_WAKE_S):
                while ("slice", f"{name}-00001") not in seen:
                    came.clear()
                    await came.wait()
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()

    def between(first: str, last: str) -> dict[str, float]:
        times_ms = [(seen[last, f"{name}-00001"] - seen[first, f"{name}-00001"]) * 1000 for name in names]
        return {"median_ms": round(statistics.median(times_ms), 1), "most_ms": round(max(times_ms), 1)}

    return {
        "asked": between("asked", "scale"),
        "scale": between("active", "scale"),
        "pods": between("scale", "pod"),
        "slice": between("pod", "slice"),
        "whole": between("active", "slice"),
    }


def main() -> int:
    """Measure and print; 1 if the goal is missed."""
    options = options_of(__doc__, services=30, quick={"services": 1})
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(options.services, Path(folder)))
    show(found, options)
    return exit_code(options, is_met=found["scale"]["median_ms"] <= SCALE_GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
