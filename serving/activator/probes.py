"""Questions to the activator itself, and how they are told from requests for a service.

Input: what a request's head says, and whether its host is a service's. Output: the answer, or None for a request that
is a service's own. ``K-Network-Probe: activator`` asks whether the activator is in the path and is answered whatever the
host: nothing is given away by it. A kubelet's probe and ``/healthz`` are ours only where no service has the host: what
the world claims to be is not believed, and a service keeps its own paths. Follows knative/serving 98e5ef90
pkg/activator/handler (ProbeHandler, HealthHandler) with the trust of docs/architecture.md.
"""

import msgspec

__all__ = ["ProbeAnswer", "is_probe_agent", "probe_answer"]

_PROBE_AGENTS = (
    b"kube-probe/",
    b"knative-activator-probe",
    b"knative-autoscaling-probe",
    b"knative-ingress-probe",
    b"knative-queue-proxy-probe",
)
_NAME = b"activator"


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe is answered."""

    status: int
    body: bytes


def is_probe_agent(user_agent: bytes) -> bool:
    """Whether a User-Agent is one that only our own probes and kubelets may have; queue-proxies believe it."""
    return user_agent.lower().startswith(_PROBE_AGENTS)


def probe_answer(
    *, network_probe: bytes | None, user_agent: bytes, target: bytes, is_site: bool, is_draining: bool
) -> ProbeAnswer | None:
    """The answer to a probe; None: it is none.

    ``network_probe`` is the header K-Network-Probe if there is one. ``is_site`` says that a service has the host.
    """
    if network_probe == _NAME:
        return ProbeAnswer(status=200, body=_NAME)
    if is_site or not (target.partition(b"?")[0] == b"/healthz" or is_probe_agent(user_agent)):
        return None
    return ProbeAnswer(status=503, body=b"shutting down") if is_draining else ProbeAnswer(status=200, body=b"ok")
