"""Pins the images of a revision to digests.

A later change of a tag affects no revision. Input: a revision, and the registries' responses. Output: the images to
request, and a pod's spec with digests. Follows knative/serving 98e5ef90, pkg/reconciler/revision/resolve.go, with one
difference: if a registry refuses, the tag stays, because nodes may have credentials that the controller lacks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import ImageReference, parse_reference
from serving.core.model.objects import Object, nested

_FIELDS = (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses"))


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The registries' responses for a revision: digests by image name; "" means that the image keeps its tag.

    ``failure`` is why a registry did not respond, or "". ``refused`` is why an image keeps its tag, or "".
    """

    images: Mapping[str, str] = {}
    failure: str = ""
    refused: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether there is no answer yet."""
        return not (self.images or self.failure)


def unresolved_images(revision: Object, skipped: Collection[str]) -> list[str]:
    """The images of a revision whose digests must be queried. Registries in ``skipped`` are left out."""
    known = known_images(revision)
    images = {container.get("image", "") for field, _ in _FIELDS for container in _listed(revision, "spec", field)}
    return sorted(image for image in images - known.keys() if _is_by_tag(image, skipped))


def known_images(revision: Object) -> dict[str, str]:
    """The digests in a revision's status, by the image name in the pod's spec."""
    return dict(_known_images(revision))


def with_digests(pod_spec: Object, images: Mapping[str, str]) -> Object:
    """A pod's spec with images by digest."""
    if not any(images.values()):
        return pod_spec
    return {
        **pod_spec,
        **{
            field: [
                {**container, "image": images.get(container.get("image", "")) or container.get("image")}
                for container in pod_spec[field]
            ]
            for field, _ in _FIELDS
            if pod_spec.get(field)
        },
    }


def digests_of(pod_spec: Object, field: str, names: Sequence[str]) -> dict[str, str]:
    """The image digest of each named container of a Deployment, if it has one."""
    images = {container.get("name"): container.get("image", "") for container in nested(pod_spec, field) or ()}
    return {name: images[name] for name in names if "@" in images.get(name, "")}


def _known_images(revision: Object) -> Iterator[tuple[str, str]]:
    for field, status_field in _FIELDS:
        digests = {
            status.get("name"): status.get("imageDigest", "") for status in _listed(revision, "status", status_field)
        }
        for container in _listed(revision, "spec", field):
            image, digest = container.get("image", ""), digests.get(container.get("name"), "")
            # An image imported on a node has a local name, which no other node can pull.
            if digest and _repository(digest) == _repository(image):
                yield image, digest


def _listed(revision: Object, part: str, field: str) -> Sequence[Object]:
    return nested(revision, part, field) or ()


def _is_by_tag(image: str, skipped: Collection[str]) -> bool:
    reference = _reference(image)
    return reference is not None and not reference.digest and reference.registry not in skipped


def _repository(image: str) -> tuple[str, str] | None:
    reference = _reference(image)
    return None if reference is None else (reference.registry, reference.repository)


def _reference(image: str) -> ImageReference | None:
    try:
        return parse_reference(image)
    except InvalidValue:
        # The kubelet reports it.
        return None
