"""Questions to the activator itself, and how they are told from requests for a service.

Input: what a request's head says, and whether its host is a service's. Output: the answer, or None for a request that
is a service's own. ``K-Network-Probe: activator`` asks whether the activator is in the path and is answered whatever the
host: nothing is given away by it. ``K-Network-Probe: probe`` asks how a host is shared out, and is answered with a digest
(``serving.model.split``) without waking anybody. A kubelet's probe and ``/healthz`` are ours only where no service has the host: what
the world claims to be is not believed, and a service keeps its own paths. Follows knative/serving 98e5ef90
pkg/activator/handler (ProbeHandler, HealthHandler) with the trust of docs/architecture.md.
"""

import msgspec

from serving.activator.routes import Site, shares_of
from serving.model.split import split_digest

__all__ = ["ProbeAnswer", "is_probe_agent", "probe_answer"]

_PROBE_AGENTS = (
    b"kube-probe/",
    b"knative-activator-probe",
    b"knative-autoscaling-probe",
    b"knative-ingress-probe",
    b"knative-queue-proxy-probe",
)
_NAME = b"activator"
_SPLIT = b"probe"


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe is answered."""

    status: int
    body: bytes


def is_probe_agent(user_agent: bytes) -> bool:
    """Whether a User-Agent is one that only our own probes and kubelets may have; queue-proxies believe it."""
    return user_agent.lower().startswith(_PROBE_AGENTS)


def probe_answer(
    *, network_probe: bytes | None, user_agent: bytes, target: bytes, site: Site | None, is_draining: bool
) -> ProbeAnswer | None:
    """The answer to a probe; None: it is none.

    ``network_probe`` is the header K-Network-Probe if there is one. ``site`` is the service's that has the host, if one has.
    """
    if network_probe == _NAME:
        return ProbeAnswer(status=200, body=_NAME)
    if network_probe == _SPLIT and site is not None:
        return ProbeAnswer(status=200, body=split_digest(shares_of(site)).encode())
    if site is not None or not (target.partition(b"?")[0] == b"/healthz" or is_probe_agent(user_agent)):
        return None
    return ProbeAnswer(status=503, body=b"shutting down") if is_draining else ProbeAnswer(status=200, body=b"ok")
