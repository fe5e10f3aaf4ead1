"""Decides by a peer's certificate what it may request from the autoscaler.

Input: path and names of a request, and its sender. Output: the reason to refuse the request, or None. The token is
checked separately: it must belong to the pod or daemon that the certificate names.
"""

from collections.abc import Mapping

import msgspec

from serving.core.model.identities import ACTIVATOR, AUTOSCALER, DAEMONS, PodIdentity

CREDENTIALS_PATH = "/credentials"
ANNOUNCE_PATH = "/announce"
HEALTH_PATH = "/healthz"
_STATS_PATH = "/stats"
_METRICS_PATH = "/metrics"
_QUERY_PATHS = {_METRICS_PATH, "/decisions", "/policies"}
# These requests name their sender, which the certificate must confirm.
_NAMED_PATHS = {_STATS_PATH, ANNOUNCE_PATH}
_POD_NAMES = {"namespace", "revision", "pod"}


class StatsPeer(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request.

    ``identity`` is the SPIFFE id in its certificate, "" without a certificate. ``host`` is its IP address.
    ``is_loopback``: the request comes from inside the autoscaler's own pod.
    """

    is_tls: bool = False
    identity: str = ""
    host: str = ""
    is_loopback: bool = False


def objection(path: str, names: Mapping[str, str], peer: StatsPeer, *, is_strict: bool) -> str | None:
    """Why a request is refused; None if the certificate allows it. ``is_strict`` refuses plain HTTP."""
    if path == HEALTH_PATH or (path == _METRICS_PATH and not peer.is_tls):
        # Kubelets probe without a certificate. Prometheus reads the pages of all daemons with the query token.
        return None
    if not peer.is_tls and is_strict and not (peer.is_loopback and path not in _NAMED_PATHS):
        what = "TLS, or kubectl port-forward" if path in _QUERY_PATHS else "TLS with a certificate of this installation"
        return f"this needs {what} (system-internal-tls is Enabled)"
    if path == CREDENTIALS_PATH or not peer.is_tls:
        return None
    if not peer.identity:
        # The dashboard and Prometheus have the query token, which is checked next, but no key for a certificate.
        return None if path in _QUERY_PATHS else "this needs a certificate of this installation"
    if path not in _NAMED_PATHS:
        return None if peer.identity in DAEMONS else f"{peer.identity} may not ask this"
    expected = _sender_id(names)
    return None if peer.identity == expected else f"{peer.identity} may not report for {expected or 'this name'}"


def _sender_id(names: Mapping[str, str]) -> str:
    if names.keys() == {"activator"}:
        return ACTIVATOR
    if names.keys() == {"autoscaler"}:
        return AUTOSCALER
    return PodIdentity(**names).spiffe_id if names.keys() == _POD_NAMES else ""
