"""Decides the traffic path of a revision's public Service, and reads the current path from its EndpointSlices.

Input: the controller's EndpointSlices, and a decision with its excess burst capacity. Output: the time since which the
slices contain only activators, and the path that the autoscaler writes. Without a public Service the activators are
always in the path, and no path is written. The controller checks whether an activator can replace the pods.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.knative import TrafficPath
from serving.core.model.nodata import NoData
from serving.core.scaling.decision.records import Decided
from serving.core.scaling.kpa.burst import traffic_path
from serving.core.scaling.kpa.decide import ScaleDecision

PUBLIC_SLICES = "endpointslice.kubernetes.io/managed-by=serving-controller"
"""Label selector of the controller's EndpointSlices."""


class PublicSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One EndpointSlice of a revision's public Service; ``names_pods`` says whether it contains a pod."""

    name: str
    key: tuple[str, str]
    names_pods: bool


class PublicSlices:
    """All EndpointSlices of a revision's public Service.

    ``proxy_since_s`` is when its endpoints last began to be only activators; None while they include a pod, or without
    slices.
    """

    __slots__ = ("_names_pods", "proxy_since_s")

    def __init__(self) -> None:
        self._names_pods: dict[str, bool] = {}
        self.proxy_since_s: float | None = None

    @property
    def is_there(self) -> bool:
        """Whether the Service is known to exist."""
        return bool(self._names_pods)

    def update(self, public: PublicSlice, now_s: float, *, is_gone: bool = False) -> bool:
        """Store or delete a slice; return whether the traffic path changed."""
        if is_gone:
            self._names_pods.pop(public.name, None)
        else:
            self._names_pods[public.name] = public.names_pods
        is_proxied = self.is_there and not any(self._names_pods.values())
        if is_proxied is (self.proxy_since_s is not None):
            return False
        self.proxy_since_s = now_s if is_proxied else None
        return True


def public_slice_of(slice_object: Mapping[str, Any]) -> PublicSlice | None:
    """Read a slice of a revision's public Service; None if it belongs to a route."""
    metadata = slice_object["metadata"]
    owners = metadata.get("ownerReferences") or ()
    revision = next((owner["name"] for owner in owners if owner.get("kind") == "Revision"), None)
    if revision is None:
        return None
    return PublicSlice(
        name=metadata["name"],
        key=(metadata.get("namespace", ""), revision),
        # Pod endpoints have a targetRef; activator endpoints do not.
        names_pods=any(endpoint.get("targetRef") for endpoint in slice_object.get("endpoints") or ()),
    )


def wanted_path(
    decided: Decided, *, present: TrafficPath, wanted_count: int | NoData, is_inactive: bool, ready_count: int
) -> TrafficPath:
    """The traffic path after a decision. Without data it is unchanged; the classic algorithm always uses activators."""
    detail = decided.detail
    if isinstance(detail, ScaleDecision):
        excess = detail.excess_burst_capacity
    else:
        is_kept = isinstance(detail, NoData) and present is TrafficPath.SERVE
        excess = 0 if is_kept else -1
    return traffic_path(
        wanted_count=wanted_count,
        is_inactive=is_inactive,
        excess=excess,
        ready_count=ready_count,
        # The controller decides the path without activators.
        ready_activator_count=1,
    )
