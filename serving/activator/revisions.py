"""What the activator must know of revisions and of their pods, read from Revision and EndpointSlice objects.

Input: objects as the API has them, one at a time. Output: typed facts, and for each revision the pods that may be given
requests. A pod that terminates or is not ready is not among them; a revision's slices add up. An object that cannot be
read is ``NoData`` with the reason, never an exception: one bad object must not stop the others.

It refuses to know how many requests there are. Slices follow discovery.k8s.io/v1: a condition that is not said counts
as ready, because that is what consumers are told to do.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.model.knative import CONFIGURATION_LABEL, REVISION_LABEL, RevisionKey, ServingState
from serving.model.nodata import NoData
from serving.model.readinessprobe import kubelet_decides
from serving.scaling.resolve import resolve_annotations
from serving.settings.autoscaler import AutoscalerSettings

__all__ = [
    "PodFacts",
    "RevisionFacts",
    "SliceFacts",
    "Slices",
    "revision_of",
    "slice_of",
]

# Knative's config-defaults: revision-timeout-seconds.
_TIMEOUT_DEFAULT_S = 300.0
# Where queue-proxies listen when a slice names no port.
_PORT_DEFAULT = 8012
# Reasons of Ready=False that end without a change of the revision: a node comes, or another pod goes.
_WAITS_FOR_ROOM = frozenset({"Unschedulable", "SchedulingGated"})


class RevisionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a revision matters here. Times in seconds, None where there is no limit.

    ``container_concurrency`` 0 means no limit. ``target_concurrency`` is how many requests in flight a pod should have, as
    the autoscaler resolves it.
    ``desired_count`` is the number of pods in its status. ``failure`` is the message of a Ready condition that is False:
    its pods fail, or none came up in time. ``delay`` is the message of one that is False because no node has room for a
    pod: requests wait for that. ``configuration`` is the name of its Configuration, "" without one. ``kubelet_decides``
    says that the kubelet runs a readiness probe of its own: then the queue-proxy alone cannot say that a pod is ready.
    """

    key: RevisionKey
    resource_version: str
    serving_state: ServingState
    target_concurrency: float
    uid: str = ""
    container_concurrency: int = 0
    timeout_s: float = _TIMEOUT_DEFAULT_S
    response_start_timeout_s: float | None = None
    idle_timeout_s: float | None = None
    desired_count: int = 0
    failure: str | None = None
    delay: str | None = None
    configuration: str = ""
    kubelet_decides: bool = False


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod takes requests ("127.64.0.3:8012"), and who it is."""

    address: str
    namespace: str
    name: str


class SliceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one slice: those that may be given requests, and those that are not ready and stay."""

    key: str
    revision: RevisionKey
    pods: tuple[PodFacts, ...]
    unready: tuple[PodFacts, ...] = ()


class _Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    serving_state: ServingState = ServingState.ACTIVE
    container_concurrency: int | None = None
    timeout_seconds: float | None = None
    response_start_timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    containers: list[dict[str, Any]] | None = None


class _Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    conditions: list[_Condition] | None = None
    desired_replicas: int | None = None


class _Revision(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _EndpointConditions(msgspec.Struct, frozen=True, kw_only=True):
    ready: bool | None = None
    terminating: bool | None = None


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""


class _Endpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    addresses: list[str] = []
    conditions: _EndpointConditions | None = None
    target_ref: _Target | None = None


class _Port(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    port: int | None = None


class _Slice(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


def revision_of(revision: Mapping[str, Any], scaling: AutoscalerSettings) -> RevisionFacts | NoData:
    """The facts of a Revision object, with the target that the autoscaler resolves from ``scaling``."""
    try:
        read = msgspec.convert(revision, _Revision)
    except msgspec.ValidationError as error:
        return NoData(missing=f"a Revision that can be read: {error}")
    spec, metadata = read.spec, read.metadata
    not_ready = _not_ready(read.status)
    is_delayed = not_ready is not None and not_ready.reason in _WAITS_FOR_ROOM
    message = None if not_ready is None else _message_of(not_ready)
    container_concurrency = max(0, spec.container_concurrency or 0)
    resolved = resolve_annotations(
        metadata.annotations or {}, scaling, container_concurrency=container_concurrency, reachable=True
    )
    return RevisionFacts(
        key=(metadata.namespace, metadata.name),
        resource_version=metadata.resource_version,
        serving_state=spec.serving_state,
        uid=metadata.uid,
        container_concurrency=container_concurrency,
        timeout_s=spec.timeout_seconds or _TIMEOUT_DEFAULT_S,
        response_start_timeout_s=spec.response_start_timeout_seconds or None,
        idle_timeout_s=spec.idle_timeout_seconds or None,
        target_concurrency=resolved.target_concurrency,
        desired_count=max(0, read.status.desired_replicas or 0),
        failure=None if is_delayed else message,
        delay=message if is_delayed else None,
        configuration=(metadata.labels or {}).get(CONFIGURATION_LABEL, ""),
        kubelet_decides=kubelet_decides(spec.containers or ()),
    )


def slice_of(endpoint_slice: Mapping[str, Any]) -> SliceFacts | NoData:
    """The facts of an EndpointSlice object; one without the label of a revision is none of ours."""
    try:
        read = msgspec.convert(endpoint_slice, _Slice)
    except msgspec.ValidationError as error:
        return NoData(missing=f"an EndpointSlice that can be read: {error}")
    metadata = read.metadata
    revision = (metadata.labels or {}).get(REVISION_LABEL)
    if not revision:
        return NoData(missing=f"the label {REVISION_LABEL}")
    port = _port_of(read.ports or ())
    ready: list[PodFacts] = []
    unready: list[PodFacts] = []
    for endpoint in read.endpoints or ():
        conditions = endpoint.conditions or _EndpointConditions()
        # All addresses of an endpoint are one pod: the first stands for it.
        for address in () if conditions.terminating else endpoint.addresses[:1]:
            pod = PodFacts(
                address=f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
                namespace=metadata.namespace,
                name=endpoint.target_ref.name if endpoint.target_ref else "",
            )
            (unready if conditions.ready is False else ready).append(pod)
    return SliceFacts(
        key=f"{metadata.namespace}/{metadata.name}",
        revision=(metadata.namespace, revision),
        pods=tuple(ready),
        unready=tuple(unready),
    )


class Slices:
    """The slices of all revisions, added up."""

    __slots__ = ("_revision_of", "_slices_of")

    def __init__(self) -> None:
        self._slices_of: dict[RevisionKey, dict[str, SliceFacts]] = {}
        self._revision_of: dict[str, RevisionKey] = {}

    def __repr__(self) -> str:
        return f"Slices({len(self._revision_of)} of {len(self._slices_of)} revisions)"

    def set(self, facts: SliceFacts) -> set[RevisionKey]:
        """A slice is new or has changed; the revisions whose pods may have changed by it."""
        before = self._revision_of.get(facts.key)
        if before is not None and before != facts.revision:
            self.remove(facts.key)
        self._slices_of.setdefault(facts.revision, {})[facts.key] = facts
        self._revision_of[facts.key] = facts.revision
        return {facts.revision} if before is None else {facts.revision, before}

    def remove(self, key: str) -> RevisionKey | None:
        """A slice is gone; the revision it was of."""
        revision = self._revision_of.pop(key, None)
        if revision is not None:
            slices = self._slices_of[revision]
            del slices[key]
            if not slices:
                del self._slices_of[revision]
        return revision

    def pods_of(self, revision: RevisionKey) -> dict[str, PodFacts]:
        """The pods of a revision that may be given requests, by address."""
        slices = self._slices_of.get(revision, {})
        return {pod.address: pod for one in slices.values() for pod in one.pods}

    def unready_of(self, revision: RevisionKey) -> dict[str, PodFacts]:
        """The pods of a revision that are listed as not ready and do not terminate, by address."""
        ready = self.pods_of(revision)
        slices = self._slices_of.get(revision, {})
        return {pod.address: pod for one in slices.values() for pod in one.unready if pod.address not in ready}


def _port_of(ports: list[_Port] | tuple[()]) -> int:
    """The port named "http", else the first."""
    numbers = {port.name: port.port for port in reversed(ports) if port.port}
    return numbers.get("http") or next(reversed(numbers.values()), _PORT_DEFAULT)


def _not_ready(status: _Status) -> _Condition | None:
    """The Ready condition if it is False."""
    conditions = status.conditions or ()
    return next((one for one in conditions if one.type == "Ready" and one.status == "False"), None)


def _message_of(condition: _Condition) -> str:
    return ": ".join(part for part in (condition.reason, condition.message) if part) or "not ready"
