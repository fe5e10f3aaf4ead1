"""What a pod asks of a node: the sum that the scheduler reserves for it.

Input: the containers' requests; output: one amount. A request that is not set counts as 0: a group assumes that its
containers state theirs. Source: atlassian/escalator 043bb1b, pkg/k8s/scheduler; sidecars as Kubernetes' own
``PodRequests`` (KEP-753).
"""

import operator
from collections.abc import Sequence

import msgspec

from serving.model.resources import Resources, pod_peak
from serving.nodegroup.records import Amount


class InitContainer(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a container that runs before the others; a sidecar (restartPolicy Always) then stays beside them."""

    request: Resources
    is_sidecar: bool = False


def pod_request(
    containers: Sequence[Resources],
    init_containers: Sequence[InitContainer] = (),
    *,
    overhead: Resources | None = None,
    sidecars_count_as_init_containers: bool = False,
) -> Amount:
    """Cpu and memory of a pod: the larger of what runs at once and what runs before, plus the overhead.

    Containers of 2000 m and 1000 m after init containers of 2000 m and 2000 m: max(3000, 2000) = 3000 m. Init
    containers run one after another, so only the largest counts. A sidecar of 500 m before them stays: max(3500,
    2500) = 3500 m, unless the quirk is asked for, which takes it for an ordinary init container.
    """
    before = [
        (_amount(one.request), one.is_sidecar and not sidecars_count_as_init_containers) for one in init_containers
    ]
    peak = pod_peak(map(_amount, containers), before, none=Amount(), add=operator.add, larger=_larger)
    return peak + _amount(overhead or Resources())


def _amount(resources: Resources) -> Amount:
    return Amount(cpu_m=resources.cpu_m or 0, memory_bytes=resources.memory_bytes or 0)


def _larger(one: Amount, other: Amount) -> Amount:
    return Amount(cpu_m=max(one.cpu_m, other.cpu_m), memory_bytes=max(one.memory_bytes, other.memory_bytes))
