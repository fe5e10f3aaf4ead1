"""The pods of revisions, read from EndpointSlice objects, and the endpoint of each pod.

Input: one EndpointSlice at a time. Output: for each revision, the ready pods and the pods that are not ready yet, over
all its slices. Terminating pods are omitted. An invalid slice gives ``NoData`` with the reason, so that other slices
are still read.

Slices follow discovery.k8s.io/v1: a missing condition counts as ready.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from serving.core.model.identities import pods_of
from serving.core.model.knative import REVISION_LABEL, RevisionKey
from serving.core.model.nodata import NoData
from serving.core.model.ports import PORT_MAX
from serving.core.model.scaledworkload import TLS_PROTOCOLS

# Port of queue-proxies in a slice without a port.
_PORT_DEFAULT = 8012

# About 2 MB, regardless of how many pods come and go. Recreating a dropped endpoint takes microseconds.
_ENDPOINTS_MAX = 2_048


class ServedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod: its address for requests ("127.64.0.3:8012"), its identity, and its node.

    ``node`` is "" if it is unknown. ``scheme`` is "" for a queue-proxy, "http" or "https" for an app without one.
    """

    address: str
    namespace: str
    name: str
    node: str = ""
    scheme: str = ""

    @property
    def has_queue_proxy(self) -> bool:
        """Whether a queue-proxy is in front of the app. Pods of ScaledWorkloads have none."""
        return not self.scheme


class ServedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one slice: ready ones, and unready ones that are not terminating."""

    key: str
    revision: RevisionKey
    pods: tuple[ServedPod, ...]
    unready: tuple[ServedPod, ...] = ()


class _SliceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str = "default"
    labels: dict[str, str] | None = None


class _EndpointConditions(msgspec.Struct, frozen=True, kw_only=True):
    ready: bool | None = None
    terminating: bool | None = None


class _TargetReference(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""


class _Endpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    addresses: list[str] = []
    conditions: _EndpointConditions | None = None
    target_ref: _TargetReference | None = None
    node_name: str | None = None


class _SlicePort(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str | None = None
    # The API server of Kubernetes does not check the range, and connecting would raise an error of another type.
    port: Annotated[int, msgspec.Meta(ge=0, le=PORT_MAX)] | None = None
    app_protocol: str | None = None


class _Slice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    metadata: _SliceMetadata
    endpoints: list[_Endpoint] | None = None
    ports: list[_SlicePort] | None = None
    # As for kube-proxy: names could lead to the activator itself, and may be too long to look up.
    address_type: Literal["IPv4", "IPv6"] = "IPv4"


def slice_of(endpoint_slice: Mapping[str, Any]) -> ServedSlice | NoData:
    """Read an EndpointSlice of a revision. Returns ``NoData`` for a slice without a revision's label."""
    read = _read(endpoint_slice)
    if isinstance(read, NoData):
        return read
    revision = (read.metadata.labels or {}).get(REVISION_LABEL)
    if not revision:
        return NoData(missing=f"the label {REVISION_LABEL}")
    key = f"{read.metadata.namespace}/{read.metadata.name}"
    return _served(read, key, revision, port=_port_of(read.ports or ()))


def workload_slice_of(
    endpoint_slice: Mapping[str, Any], workload: str, *, port_name: str | None
) -> ServedSlice | NoData:
    """Read a slice of a ScaledWorkload's Service. ``port_name`` None selects the only or first port."""
    read = _read(endpoint_slice)
    if isinstance(read, NoData):
        return read
    ports = [port for port in read.ports or () if port.port and port_name in (None, port.name or "")]
    key = f"{read.metadata.namespace}/{read.metadata.name}@{workload}"
    if not ports or ports[0].port is None:
        # The pods lack the port, or the slice has no port yet.
        return ServedSlice(key=key, revision=(read.metadata.namespace, workload), pods=())
    is_tls = (ports[0].app_protocol or "").lower() in TLS_PROTOCOLS
    return _served(read, key, workload, port=ports[0].port, scheme="https" if is_tls else "http")


def _read(endpoint_slice: Mapping[str, Any]) -> _Slice | NoData:
    try:
        return msgspec.convert(endpoint_slice, _Slice)
    except msgspec.ValidationError as error:
        return NoData(missing=f"an EndpointSlice that can be read: {error}")


def _served(read: _Slice, key: str, revision: str, *, port: int, scheme: str = "") -> ServedSlice:
    metadata = read.metadata
    ready: list[ServedPod] = []
    unready: list[ServedPod] = []
    for endpoint in read.endpoints or ():
        conditions = endpoint.conditions or _EndpointConditions()
        # All addresses of an endpoint are the same pod; the first one is used.
        for address in () if conditions.terminating else endpoint.addresses[:1]:
            pod = ServedPod(
                address=f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
                namespace=metadata.namespace,
                name=endpoint.target_ref.name if endpoint.target_ref else "",
                node=endpoint.node_name or "",
                scheme=scheme,
            )
            (unready if conditions.ready is False else ready).append(pod)
    return ServedSlice(
        key=key,
        revision=(metadata.namespace, revision),
        pods=tuple(ready),
        unready=tuple(unready),
    )


class SliceIndex:
    """The combined slices of all revisions."""

    __slots__ = ("_revision_of", "_slices_of")

    def __init__(self) -> None:
        self._slices_of: dict[RevisionKey, dict[str, ServedSlice]] = {}
        self._revision_of: dict[str, RevisionKey] = {}

    def set(self, pod_slice: ServedSlice) -> set[RevisionKey]:
        """Add or update a slice; return the revisions whose pods may have changed."""
        before = self._revision_of.get(pod_slice.key)
        if before is not None and before != pod_slice.revision:
            self.remove(pod_slice.key)
        self._slices_of.setdefault(pod_slice.revision, {})[pod_slice.key] = pod_slice
        self._revision_of[pod_slice.key] = pod_slice.revision
        return {pod_slice.revision} if before is None else {pod_slice.revision, before}

    def remove(self, key: str) -> RevisionKey | None:
        """Remove a slice; return its revision, None for an unknown slice."""
        revision = self._revision_of.pop(key, None)
        if revision is not None:
            slices = self._slices_of[revision]
            del slices[key]
            if not slices:
                del self._slices_of[revision]
        return revision

    def pods_of(self, revision: RevisionKey) -> dict[str, ServedPod]:
        """A revision's pods that are listed as ready, by address."""
        slices = self._slices_of.get(revision, {})
        return {pod.address: pod for slice_ in slices.values() for pod in slice_.pods}

    def unready_of(self, revision: RevisionKey) -> dict[str, ServedPod]:
        """A revision's pods that are listed as not ready and are not terminating, by address."""
        ready = self.pods_of(revision)
        slices = self._slices_of.get(revision, {})
        return {pod.address: pod for slice_ in slices.values() for pod in slice_.unready if pod.address not in ready}


def _port_of(ports: list[_SlicePort] | tuple[()]) -> int:
    """The port named "http", else the first port."""
    numbers = {port.name: port.port for port in reversed(ports) if port.port}
    return numbers.get("http") or next(reversed(numbers.values()), _PORT_DEFAULT)


class PodEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of one pod, and the header lines of requests to this pod."""

    pod: ServedPod
    address: tuple[str, int]
    lines: bytes
    """The header lines of each request."""


class PodEndpoints:
    """The endpoints of all pods.

    ``override`` are two prefixes, as in "10.=127.": pods whose listed address begins with the first are reached at the
    second. "" changes no address. ``lines_to`` creates the header lines of requests to a pod.
    """

    __slots__ = ("_endpoints", "_identities", "_lines_to", "_listed_prefix", "_schemes", "_used_prefix")

    def __init__(self, override: str, *, lines_to: Callable[[ServedPod, RevisionKey], bytes]) -> None:
        self._listed_prefix, _, self._used_prefix = override.partition("=")
        self._lines_to = lines_to
        self._endpoints: dict[str, PodEndpoint] = {}
        self._identities: dict[tuple[str, int], str] = {}
        self._schemes: dict[tuple[str, int], str] = {}

    def to(self, pod: ServedPod, revision: RevisionKey) -> PodEndpoint:
        """The endpoint of a pod of a revision."""
        endpoint = self._endpoints.get(pod.address)
        return self._make(pod, revision) if endpoint is None or endpoint.pod != pod else endpoint

    def identity_at(self, address: tuple[str, int]) -> str:
        """The SPIFFE id of the pod at an address returned by ``to``; "" for any other address."""
        return self._identities.get(address, "")

    def scheme_at(self, address: tuple[str, int]) -> str:
        """The scheme of an app without queue-proxy, at an address returned by ``to``; "" for a queue-proxy."""
        return self._schemes.get(address, "")

    def _make(self, pod: ServedPod, revision: RevisionKey) -> PodEndpoint:
        if len(self._endpoints) >= _ENDPOINTS_MAX:
            self._endpoints.clear()
            self._identities.clear()
            self._schemes.clear()
        address = pod.address
        if address.startswith(self._listed_prefix):
            address = self._used_prefix + address.removeprefix(self._listed_prefix)
        host, _, port = address.rpartition(":")
        endpoint = PodEndpoint(pod=pod, address=(host.strip("[]"), int(port)), lines=self._lines_to(pod, revision))
        self._endpoints[pod.address] = endpoint
        # If the slice does not name the pod, any pod of the revision is accepted.
        self._identities[endpoint.address] = pods_of(*revision) + pod.name
        if pod.scheme:
            self._schemes[endpoint.address] = pod.scheme
        else:
            self._schemes.pop(endpoint.address, None)
        return endpoint
