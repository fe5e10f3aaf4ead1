"""How requests reach a pod: its address as sockets take it, and the header lines that authenticate the activator.

Input: a pod and its revision. Output: an endpoint, made once and kept until another pod has that address. The header lines
are made elsewhere.
"""

from collections.abc import Callable

import msgspec

from serving.activator.queueing.slices import ServedPod
from serving.model.knative import RevisionKey

# About 2 MB, whatever came and went. An endpoint is made again in microseconds.
_ENDPOINTS_MAX = 2_048


class PodEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, as a request reaches it."""

    pod: ServedPod
    address: tuple[str, int]
    lines: bytes
    """The header lines of each request."""


class PodEndpoints:
    """The endpoints of all pods. ``override`` is the setting ``pod_address_override``; ``lines_to`` makes a pod's header lines."""

    __slots__ = ("_endpoints", "_lines_to", "_listed_prefix", "_used_prefix")

    def __init__(self, override: str, *, lines_to: Callable[[ServedPod, RevisionKey], bytes]) -> None:
        self._listed_prefix, _, self._used_prefix = override.partition("=")
        self._lines_to = lines_to
        self._endpoints: dict[str, PodEndpoint] = {}

    def __repr__(self) -> str:
        return f"PodEndpoints({len(self._endpoints)} pods)"

    def to(self, pod: ServedPod, revision: RevisionKey) -> PodEndpoint:
        """The endpoint of a pod of a revision."""
        endpoint = self._endpoints.get(pod.address)
        return self._make(pod, revision) if endpoint is None or endpoint.pod != pod else endpoint

    def _make(self, pod: ServedPod, revision: RevisionKey) -> PodEndpoint:
        if len(self._endpoints) >= _ENDPOINTS_MAX:
            self._endpoints.clear()
        address = pod.address
        if address.startswith(self._listed_prefix):
            address = self._used_prefix + address.removeprefix(self._listed_prefix)
        host, _, port = address.rpartition(":")
        endpoint = PodEndpoint(pod=pod, address=(host.strip("[]"), int(port)), lines=self._lines_to(pod, revision))
        self._endpoints[pod.address] = endpoint
        return endpoint
