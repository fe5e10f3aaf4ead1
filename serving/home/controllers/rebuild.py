"""Whether everything that is not on disk has been made again after a restart of the control process.

Status, pods and slices live in memory only. A watcher that lists while they are made again would believe that hosts and
pods are gone, and refuse requests that could be answered.
"""

import asyncio
from collections.abc import Sequence

from serving.aio.clock import now_s
from serving.cluster.kinds import DOMAIN_MAPPING, ENDPOINT_SLICE, POD, ROUTE
from serving.cluster.port import Cluster
from serving.home.controllers.workloads import is_ready
from serving.model.errors import ClusterError
from serving.model.knative import REVISION_LABEL
from serving.model.objects import Object, conditions_of, nested

_PAUSE_S = 0.01


def is_rebuilt(
    routes: list[Object], pods: list[Object], slices: list[Object], *, mappings: Sequence[Object] = ()
) -> bool:
    """Whether each route says where its traffic goes, or why it goes nowhere, and each pod is ready and in a slice.

    ``slices`` are those of revisions. A DomainMapping has a status again.
    """
    if not all(map(_is_told, routes)) or not all(conditions_of(one) for one in mappings):
        return False
    endpoints = [one for whole in slices for one in whole.get("endpoints") or ()]
    listed = {nested(one, "targetRef", "name") for one in endpoints if nested(one, "conditions", "ready")}
    return all(is_ready(pod) and pod["metadata"]["name"] in listed for pod in pods)


def _is_told(route: Object) -> bool:
    status = route.get("status") or {}
    has_failed = any(one["type"] == "Ready" and one["status"] == "False" for one in status.get("conditions") or ())
    return bool(status.get("traffic")) or has_failed


async def until_rebuilt(cluster: Cluster, *, within_s: float) -> None:
    """Wait until it is, but not for ever: a pod that is not ready may have been so before."""
    until_s = now_s() + within_s
    before = {one["metadata"]["name"] for one in (await cluster.list(POD)).items}
    while now_s() < until_s:
        await asyncio.sleep(_PAUSE_S)
        try:
            routes, pods, mappings = [(await cluster.list(kind)).items for kind in (ROUTE, POD, DOMAIN_MAPPING)]
            slices = (await cluster.list(ENDPOINT_SLICE, label_selector=REVISION_LABEL)).items
        except ClusterError:
            continue
        # Only those that were taken over: one that starts now is not what anybody remembers.
        old = [
            pod for pod in pods if pod["metadata"]["name"] in before and not pod["metadata"].get("deletionTimestamp")
        ]
        if is_rebuilt(routes, old, slices, mappings=mappings):
            return
