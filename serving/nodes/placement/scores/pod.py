"""Sums of requests and limits: of one pod, and of all pods on a node.

Input: containers with requests and limits, where a missing key is not 0. Output: ``PodDemand``, the three sums that
node scores use. This module does not decide whether a pod fits.

Sources: kubernetes/kubernetes 1.7, plugin/pkg/scheduler/algorithm/priorities/util/non_zero.go (non-zero requests);
kubernetes-sigs/scheduler-plugins 903da7d, pkg/trimaran (requests and limits).
"""

import operator
from collections.abc import Callable, Iterable

import msgspec

from serving.core.model.quantity import MEMORY_ASSUMED_BYTES, Resources, pod_peak

# Assumed usage of a container without requests, so that such pods spread over nodes (kubernetes issue 10242).
NONZERO_CPU_M = 100


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and limits of one container. A sidecar is an init container that keeps running with later containers."""

    request: Resources = Resources()
    limit: Resources = Resources()
    is_sidecar: bool = False


class PodContainers(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a pod's spec that matter for placement. ``overhead`` is the demand of the container runtime."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Resources = Resources()


class PodDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Demand of one pod, or of all pods of a node: cpu in millicores, memory in bytes.

    ``nonzero_`` is the sum of requests, with 100 m and 200 MiB assumed for each container without requests; only scores
    use it. ``request_`` and ``limit_`` are the sums of the declared amounts, including init containers and overhead. A
    limit is never below its request.
    """

    nonzero_cpu_m: int = 0
    nonzero_memory_bytes: int = 0
    request_cpu_m: int = 0
    request_memory_bytes: int = 0
    limit_cpu_m: int = 0
    limit_memory_bytes: int = 0

    @property
    def best_effort(self) -> bool:
        """Whether there are no requests and limits at all; overhead counts as a request."""
        return not (self.request_cpu_m or self.request_memory_bytes or self.limit_cpu_m or self.limit_memory_bytes)


def pod_demand(pod: PodContainers) -> PodDemand:
    """The demand of one pod.

    The non-zero sum is over containers only; an explicit 0 stays 0. Example: two containers without a request and one
    of 250 m give 100 + 100 + 250 = 450 m.

    Request and limit are the larger of the sum over containers and the largest init container, plus overhead. Init
    containers run one by one before the containers, together with earlier sidecars. The limit is then raised to the
    request. A container without a limit adds 0 to the limit. Example: containers of 500 m and 100 m, an init container
    of 1000 m and an overhead of 50 m give max(600, 1000) + 50 = 1050 m.
    """
    request_cpu_m = _needed(pod, lambda container: container.request.cpu_m, pod.overhead.cpu_m)
    request_memory_bytes = _needed(pod, lambda container: container.request.memory_bytes, pod.overhead.memory_bytes)
    limit_cpu_m = _needed(pod, lambda container: container.limit.cpu_m, pod.overhead.cpu_m)
    limit_memory_bytes = _needed(pod, lambda container: container.limit.memory_bytes, pod.overhead.memory_bytes)
    return PodDemand(
        nonzero_cpu_m=sum(_or(container.request.cpu_m, NONZERO_CPU_M) for container in pod.containers),
        nonzero_memory_bytes=sum(
            _or(container.request.memory_bytes, MEMORY_ASSUMED_BYTES) for container in pod.containers
        ),
        request_cpu_m=request_cpu_m,
        request_memory_bytes=request_memory_bytes,
        limit_cpu_m=max(limit_cpu_m, request_cpu_m),
        limit_memory_bytes=max(limit_memory_bytes, request_memory_bytes),
    )


def total_demand(demands: Iterable[PodDemand]) -> PodDemand:
    """The sum of several demands, for example of a node's pods; zero without any."""
    demands = tuple(demands)
    return PodDemand(**{name: sum(getattr(demand, name) for demand in demands) for name in PodDemand.__struct_fields__})


def _needed(pod: PodContainers, amount_of: Callable[[Container], int | None], overhead: int | None) -> int:
    peak = pod_peak(
        (amount_of(container) or 0 for container in pod.containers),
        ((amount_of(container) or 0, container.is_sidecar) for container in pod.init_containers),
        none=0,
        add=operator.add,
        larger=max,
    )
    return peak + (overhead or 0)


def _or(amount: int | None, default: int) -> int:
    return default if amount is None else amount
