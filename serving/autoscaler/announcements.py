"""Decides whether a ready pod is announced to activators, and at which address.

Input: the claim that a connection has proved, the pod as last observed, and the connection's source address. Output:
the address for the activators, or the reason to refuse it. A pod names only a port. Its address is that of its
connection, so that it cannot announce another pod's address. A kubelet may write the address to the API up to a second
later. From then on, both addresses must be equal. Pods of ScaledWorkloads announce nothing: the autoscaler announces
those that the API lists as ready, which an EndpointSlice repeats later.
"""

import ipaddress

from serving.autoscaler.token_review import PodClaim
from serving.core.model.knative import REVISION_LABEL, RevisionKey
from serving.core.model.nodata import NoData
from serving.core.model.objects import FINISHED_PHASES, Object, labels_of, name_of, nested
from serving.core.model.ports import PORT_MAX, port_of
from serving.net.wire.frames import AnnouncedPod

# Pause between announcements of a pod, in seconds. A refused pod retries after 50 ms; a passed one needs no repetition
# soon.
_PERIOD_S = 1.0
_KNOWN_MAX = 4_096


def announcement_of(claim: PodClaim, pod: Object, *, host: str, port: str) -> str | NoData:
    """The address HOST:PORT at which a pod is announced; ``NoData`` with the reason if it must not be announced.

    ``claim`` is the pod that the connection claims to be, ``pod`` the observed Pod, and ``host`` the connection's
    source address.
    """
    status = pod.get("status") or {}
    revision = labels_of(pod).get(REVISION_LABEL)
    if revision != claim.revision:
        return NoData(missing=f"a pod of revision {claim.revision}: it is one of {revision}")
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") in FINISHED_PHASES:
        return NoData(missing="a pod that does not end")
    if not port_of(port):
        return NoData(missing=f"a port from 1 to {PORT_MAX}, and not {port[:10]!r}")
    address = _address_of(host)
    known = [pod_ip["ip"] for pod_ip in status.get("podIPs") or ()] or [ip for ip in (status.get("podIP"),) if ip]
    if known and address not in [_address_of(known_ip) for known_ip in known]:
        return NoData(missing=f"a connection from {' or '.join(known)}, the pod's address: it comes from {host}")
    # The connection comes from inside the autoscaler's own pod, as by kubectl port-forward.
    if address is None or (not known and (address.is_loopback or address.is_link_local)):
        return NoData(missing=f"a connection from a pod's address, and not from {host}")
    return _with_port(address, port)


def _with_port(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int | str) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; None for other text. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def workload_announcement_of(key: RevisionKey, pod: Object, target_port: int | str) -> AnnouncedPod | None:
    """The announcement of a ready pod of a ScaledWorkload; None while its address is unknown.

    ``target_port`` is the number or name of a port of the pod. Example: a pod at 10.1.0.7 names its port 8080 "web";
    for target port "web" it is announced as 10.1.0.7:8080.
    """
    address = _address_of(str(nested(pod, "status", "podIP") or ""))
    ports = {
        port.get("name"): port.get("containerPort")
        for container in nested(pod, "spec", "containers") or ()
        for port in container.get("ports") or ()
    }
    port = ports.get(target_port) if isinstance(target_port, str) else target_port
    if address is None or port is None:
        return None
    return AnnouncedPod(
        namespace=key[0], revision=key[1], pod=name_of(pod), address=_with_port(address, port), scheme="http"
    )


class AnnouncementPace:
    """Limits each pod to one announcement a second."""

    __slots__ = ("_last_s",)

    def __init__(self) -> None:
        self._last_s: dict[RevisionKey, float] = {}

    def is_due(self, pod: RevisionKey, now_s: float) -> bool:
        """Whether to pass on a pod's announcement now; ``pod`` is its namespace and name."""
        last_s = self._last_s.get(pod)
        if last_s is not None and now_s - last_s < _PERIOD_S:
            return False
        if len(self._last_s) >= _KNOWN_MAX:
            self._last_s.clear()
        self._last_s[pod] = now_s
        return True
