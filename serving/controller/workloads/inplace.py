"""The EndpointSlices of a Service that is taken over in place: they lead to the activators.

``serving adopt --in-place`` removes the selector of a user's Service, and names the Service in an annotation of the
ScaledWorkload. Input: the workload, the activators, and the slices with names of the workload's. Output: writes.
Garbage collection deletes the slices with the workload.
"""

from collections.abc import Iterator, Mapping

from serving.controller.revisions.public import MANAGED_BY, MANAGER, SERVICE_NAME, EndpointGroups
from serving.controller.values.writes import patch_of
from serving.core.model.knative import IN_PLACE_ANNOTATION
from serving.core.model.objects import (
    Object,
    annotations_of,
    is_being_deleted,
    namespace_of,
    nested,
    owner_reference,
)
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Write


def in_place_service(workload: Object) -> str:
    """The name of the Service that a workload takes over; "" for none."""
    return annotations_of(workload).get(IN_PLACE_ANNOTATION, "")


def slice_name(workload: Object, family: str) -> str:
    """The name of the EndpointSlice with the activators' addresses of a family, "IPv4" or "IPv6"."""
    return f"{in_place_service(workload)}-activators-{family.lower()}"


def in_place_writes(workload: Object, activators: EndpointGroups, slices: Mapping[str, Object]) -> Iterator[Write]:
    """Yield the writes that create or update the EndpointSlices. ``slices`` are the existing EndpointSlices.

    Without an activator, or while the port is unknown, the slices stay unchanged.
    """
    service, port_name = in_place_service(workload), nested(workload, "status", "portName")
    if not service or port_name is None or is_being_deleted(workload):
        return
    for family, group in sorted(activators.items()):
        name = slice_name(workload, family)
        content = {
            "ports": [{"name": port_name, "port": group.port, "protocol": "TCP"}],
            "endpoints": list(group.endpoints),
        }
        existing = slices.get(name)
        if existing is not None:
            is_same = all((existing.get(part) or []) == value for part, value in content.items())
            yield from patch_of(kinds.ENDPOINT_SLICE, existing, {} if is_same else content)
            continue
        metadata = {
            "name": name,
            "namespace": namespace_of(workload),
            "labels": {SERVICE_NAME: service, MANAGED_BY: MANAGER},
            "ownerReferences": [owner_reference(workload)],
        }
        head = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
        yield Create(kind=kinds.ENDPOINT_SLICE, body={**head, "metadata": metadata, "addressType": family, **content})
