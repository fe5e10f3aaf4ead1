"""Which lists of Kubernetes' own kinds a strategic merge patch merges, and by which key.

Facts: the ``patchStrategy`` and ``patchMergeKey`` tags of k8s.io/api v1.36. A list that is not named here is replaced as a
whole. Kinds that are not in the table are custom resources, which have no such tags.
"""

from collections.abc import Mapping

import msgspec

from serving.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    EVENT,
    HORIZONTAL_POD_AUTOSCALER,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    SECRET,
    SERVICE,
    Kind,
)

__all__ = ["NO_HINT", "Hint", "hints_of"]


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """How one field is merged: a list by ``merge_key``, a list of texts as a union, an object field by field."""

    merge_key: str = ""
    texts: bool = False
    below: "Mapping[str, Hint]" = {}


NO_HINT = Hint()


def _by(merge_key: str, **below: Hint) -> Hint:
    return Hint(merge_key=merge_key, below=below)


def _object(**below: Hint) -> Hint:
    return Hint(below=below)


_METADATA = _object(finalizers=Hint(texts=True), ownerReferences=_by("uid"))
_CONDITIONS = _object(conditions=_by("type"))
_CONTAINER = _by(
    "name",
    ports=_by("containerPort"),
    env=_by("name"),
    volumeMounts=_by("mountPath"),
    volumeDevices=_by("devicePath"),
)
_POD_SPEC = _object(
    containers=_CONTAINER,
    initContainers=_CONTAINER,
    ephemeralContainers=_CONTAINER,
    volumes=_by("name"),
    imagePullSecrets=_by("name"),
    hostAliases=_by("ip"),
    topologySpreadConstraints=_by("topologyKey"),
    resourceClaims=_by("name"),
    schedulingGates=_by("name"),
)
_ONLY_METADATA: Mapping[str, Hint] = {"metadata": _METADATA}

_HINTS: Mapping[Kind, Mapping[str, Hint]] = {
    POD: {
        "metadata": _METADATA,
        "spec": _POD_SPEC,
        "status": _object(conditions=_by("type"), podIPs=_by("ip"), hostIPs=_by("ip")),
    },
    DEPLOYMENT: {
        "metadata": _METADATA,
        "spec": _object(template=_object(metadata=_METADATA, spec=_POD_SPEC)),
        "status": _CONDITIONS,
    },
    SERVICE: {"metadata": _METADATA, "spec": _object(ports=_by("port")), "status": _CONDITIONS},
    NODE: {
        "metadata": _METADATA,
        "spec": _object(podCIDRs=Hint(texts=True)),
        "status": _object(conditions=_by("type"), addresses=_by("type")),
    },
    NAMESPACE: {"metadata": _METADATA, "status": _CONDITIONS},
    SECRET: _ONLY_METADATA,
    CONFIG_MAP: _ONLY_METADATA,
    EVENT: _ONLY_METADATA,
    LEASE: _ONLY_METADATA,
    ENDPOINT_SLICE: _ONLY_METADATA,
    HORIZONTAL_POD_AUTOSCALER: {"metadata": _METADATA, "status": _CONDITIONS},
}


def hints_of(kind: Kind) -> Mapping[str, Hint] | None:
    """How a kind's fields are merged; None for a custom resource."""
    return _HINTS.get(kind)
