"""What the autoscaler reads from objects: a Revision, its Deployment, and whether a Pod is ready.

Input: objects as the API has them. Output: small records, or None for what is not ours to scale. Annotations that are
wrong were refused when the object was written; one that is wrong all the same has no effect here. It does not know where
objects come from, nor what is decided on them.
"""

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from serving.autoscaler.resolve import resolve
from serving.autoscaler.spec import ScalerSpec
from serving.settings.annotations import read_annotations
from serving.settings.autoscaler import CLASSIC_CLASS, KPA_CLASS, AutoscalerSettings

__all__ = [
    "DELETION_COST_ANNOTATION",
    "REVISION_LABEL",
    "DeploymentFacts",
    "PodFacts",
    "RevisionFacts",
    "RevisionKey",
    "ServingState",
    "deployment_of",
    "is_older",
    "pod_of",
    "revision_of",
]

RevisionKey = tuple[str, str]
"""Namespace and name."""

REVISION_LABEL = "serving.knative.dev/revision"
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_ROUTING_STATE_LABEL = "serving.knative.dev/routingState"
_UNREACHABLE = "reserve"
_BECAME_READY_ANNOTATION = "serving.dev/became-ready"
_OURS = (KPA_CLASS, CLASSIC_CLASS)


class ServingState(enum.StrEnum):
    """What may be done with a revision; ``spec.servingState``."""

    ACTIVE = "Active"
    RESERVE = "Reserve"
    RETIRED = "Retired"


class RevisionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that is ours to scale. ``was_ready`` says that it had its first pods ready once."""

    key: RevisionKey
    uid: str
    resource_version: str
    serving_state: ServingState
    class_name: str
    container_concurrency: int
    was_ready: bool
    spec: ScalerSpec


class DeploymentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The Deployment of a revision. ``replica_count`` is what its scale says; unset means 1."""

    name: str
    key: RevisionKey
    revision_uid: str
    replica_count: int
    resource_version: str


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a revision. One that is being deleted is not ready, whatever it says of itself."""

    name: str
    key: RevisionKey
    is_ready: bool
    is_ending: bool
    deletion_cost: str
    """What its annotation says; pods of the least cost go first. "" if it has none."""


def revision_of(found: Mapping[str, Any], settings: AutoscalerSettings) -> RevisionFacts | None:
    """A Revision; None if it goes away, or if another autoscaler (an hpa, say) has it."""
    metadata, spec = found["metadata"], found.get("spec") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    scaling = read_annotations(annotations, settings).scaling
    class_name = scaling.class_name or settings.pod_autoscaler_class
    if metadata.get("deletionTimestamp") or class_name not in _OURS:
        return None
    container_concurrency = int(spec.get("containerConcurrency") or 0)
    labels = metadata.get("labels") or {}
    return RevisionFacts(
        key=(metadata.get("namespace", ""), metadata["name"]),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        serving_state=ServingState(spec.get("servingState") or ServingState.ACTIVE),
        class_name=class_name,
        container_concurrency=container_concurrency,
        was_ready=_BECAME_READY_ANNOTATION in annotations or _is_true(found, "Ready"),
        spec=resolve(
            settings,
            scaling,
            container_concurrency=container_concurrency,
            reachable=labels.get(_ROUTING_STATE_LABEL) != _UNREACHABLE,
        ),
    )


def deployment_of(found: Mapping[str, Any]) -> DeploymentFacts | None:
    """A Deployment that a revision owns; None for any other, also for one that only carries the label."""
    metadata = found["metadata"]
    revision = (metadata.get("labels") or {}).get(REVISION_LABEL)
    owners = metadata.get("ownerReferences") or ()
    uid = next(
        (one.get("uid", "") for one in owners if (one.get("kind"), one.get("name")) == ("Revision", revision)), None
    )
    if revision is None or uid is None:
        return None
    replicas = (found.get("spec") or {}).get("replicas")
    return DeploymentFacts(
        name=metadata["name"],
        key=(metadata.get("namespace", ""), revision),
        revision_uid=uid,
        replica_count=1 if replicas is None else int(replicas),
        resource_version=metadata.get("resourceVersion", ""),
    )


def pod_of(found: Mapping[str, Any]) -> PodFacts | None:
    """A Pod of a revision; None for any other."""
    metadata = found["metadata"]
    revision = (metadata.get("labels") or {}).get(REVISION_LABEL)
    if revision is None:
        return None
    is_ending = bool(metadata.get("deletionTimestamp"))
    return PodFacts(
        name=metadata["name"],
        key=(metadata.get("namespace", ""), revision),
        is_ready=not is_ending and _is_true(found, "Ready"),
        is_ending=is_ending,
        deletion_cost=(metadata.get("annotations") or {}).get(DELETION_COST_ANNOTATION, ""),
    )


def is_older(version: str, other: str) -> bool:
    """Whether a version is from before another; versions of one kind are numbers that grow (KEP-5504)."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def _is_true(found: Mapping[str, Any], condition: str) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)
