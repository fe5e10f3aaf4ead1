"""Recognises and answers probes of the activator itself.

Input: the head of a request, and the site of its host. Output: the answer, or None for a request of a service.

- ``K-Network-Probe: activator`` tests whether the activator is in the path. Every host responds to it.
- ``K-Network-Probe: probe`` requests the digest of a host's traffic split (``serving.core.model.rollout``). It wakes no
  revision.
- ``K-Network-Probe: route`` with the path ``/routes/NAMESPACE/NAME`` requests, on the inner listener, the digest of a
  Route as currently served (``serving.core.model.routepolicy``). The controller reports a Route as ready once all
  activators respond with the Route's digest.
- A kubelet's probe and ``/healthz`` are answered here only if no service has the host. A client could send the same
  User-Agent, and a service may serve the same path.

Follows knative/serving 98e5ef90 pkg/activator/handler (ProbeHandler, HealthHandler) with the trust of
docs/architecture.md.
"""

from collections.abc import Callable

import msgspec

from serving.activator.routing.sites import Listener, Site, shares_of
from serving.core.model.rollout import split_digest

_PROBE_AGENTS = (
    b"kube-probe/",
    b"knative-activator-probe",
    b"knative-autoscaling-probe",
    b"knative-ingress-probe",
    b"knative-queue-proxy-probe",
)
_ROUTES_PATH = b"/routes/"


class ProbeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The request headers that identify a probe; ``network_probe`` is K-Network-Probe, or None."""

    network_probe: bytes | None
    user_agent: bytes
    target: bytes
    listener: Listener


class ProbeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a probe."""

    status: int
    body: bytes


def is_probe_agent(user_agent: bytes) -> bool:
    """Whether a User-Agent is reserved for kubelets and the system's probes."""
    return user_agent.lower().startswith(_PROBE_AGENTS)


def probe_response(
    question: ProbeQuestion, *, site: Site | None, digest_of: Callable[[str], str | None], is_draining: bool
) -> ProbeResponse | None:
    """The response to a probe; None if the request is not a probe.

    ``site`` is the site of the host, or None. ``digest_of`` returns the digest of the Route "NAMESPACE/NAME", or None
    if the Route is unknown.
    """
    match question.network_probe:
        case b"activator":
            return ProbeResponse(status=200, body=b"activator")
        case b"route" if question.listener is Listener.INNER and question.target.startswith(_ROUTES_PATH):
            return _route_response(digest_of(question.target.removeprefix(_ROUTES_PATH).decode("latin-1")))
        case b"probe" if site is not None:
            return ProbeResponse(status=200, body=split_digest(shares_of(site)).encode())
    is_health = question.target.partition(b"?")[0] == b"/healthz" or is_probe_agent(question.user_agent)
    if site is not None or not is_health:
        return None
    return ProbeResponse(status=503, body=b"shutting down") if is_draining else ProbeResponse(status=200, body=b"ok")


def _route_response(digest: str | None) -> ProbeResponse:
    if digest is None:
        return ProbeResponse(status=404, body=b"no such route")
    return ProbeResponse(status=200, body=digest.encode())
