"""Which readiness probes the queue-proxy runs for the kubelet.

The queue-proxy stands beside the app and probes it every few milliseconds while it starts; a kubelet probes once a second.
It can open a connection or send a plain GET to the container that serves. Every other probe stays with the kubelet, and then
the queue-proxy alone cannot say that a pod is ready.
"""

from collections.abc import Iterable

from serving.model.objects import Object, nested

_HANDLERS = ("httpGet", "tcpSocket")
_PLAIN = "HTTP"


def runs_in_queue_proxy(probe: object) -> bool:
    """Whether the queue-proxy can run a readiness probe of the serving container: plain HTTP or TCP to the pod itself."""
    handlers = [found for handler in _HANDLERS if (found := nested(probe, handler)) is not None]
    return bool(handlers) and not any(
        nested(one, "host") or (nested(one, "scheme") or _PLAIN).upper() != _PLAIN for one in handlers
    )


def with_kubernetes_scheme(probe: Object) -> Object:
    """A readiness probe of the serving container as a pod may have it: Knative takes "http", Kubernetes "HTTP" alone."""
    if not (runs_in_queue_proxy(probe) and nested(probe, "httpGet", "scheme")):
        return probe
    return {**probe, "httpGet": {**probe["httpGet"], "scheme": _PLAIN}}


def kubelet_decides(containers: Iterable[object]) -> bool:
    """Whether any container of a revision has a readiness probe that only the kubelet runs.

    A container that is alone serves also without ``ports``: a real API server stores a revision as it was written.
    """
    found = list(containers)
    return any(
        probe and not ((len(found) == 1 or nested(one, "ports")) and runs_in_queue_proxy(probe))
        for one in found
        if (probe := nested(one, "readinessProbe"))
    )
