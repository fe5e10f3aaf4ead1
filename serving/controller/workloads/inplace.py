"""The EndpointSlices of a Service that is taken over in place: they lead to the activators.

``serving adopt --in-place`` removes the selector of a user's Service, and names the Service in an annotation of the ScaledWorkload.
Input: the workload, the activators, and the slices that the workload owns. Output: writes. The slices go with the workload.
"""

from collections.abc import Iterable, Iterator

from serving.controller.revisions.public import MANAGED_BY, MANAGER, SERVICE_NAME, EndpointGroups
from serving.controller.values.writes import patch_of
from serving.core.model.knative import IN_PLACE_ANNOTATION
from serving.core.model.objects import (
    Object,
    annotations_of,
    is_being_deleted,
    name_of,
    namespace_of,
    nested,
    owner_reference,
)
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Write


def taken_service(workload: Object) -> str:
    """The name of the Service that a workload takes over; "" for none."""
    return annotations_of(workload).get(IN_PLACE_ANNOTATION, "")


def in_place_writes(workload: Object, activators: EndpointGroups, slices: Iterable[Object]) -> tuple[Write, ...]:
    """The writes of the slices. While there is no activator, or the port is not known, they stay."""
    port_name = nested(workload, "status", "portName")
    if not taken_service(workload) or port_name is None or is_being_deleted(workload):
        return ()
    return tuple(_writes(workload, activators, {name_of(listed): listed for listed in slices}, port_name=port_name))


def _writes(
    workload: Object, activators: EndpointGroups, slices: dict[str, Object], *, port_name: str
) -> Iterator[Write]:
    service = taken_service(workload)
    for family, group in sorted(activators.items()):
        name = f"{service}-activators-{family.lower()}"
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
