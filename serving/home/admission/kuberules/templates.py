"""What would keep the pods of a revision from being created: Kubernetes' rules, applied to a template.

Input: the spec of a template that keeps its schema; output: a ``Problem`` for each violation. On a real cluster the API server
refuses the Deployment, and the revision reports it; here the write is refused. What Knative completes
is no violation: names of init containers, and ports of probes, and the scheme of a probe that a queue-proxy runs. Pure.
"""

from collections.abc import Iterator
from typing import Any

from serving.home.admission.kuberules.findings import Json, forbidden, items_of, map_of
from serving.home.admission.kuberules.objects import pod_type_problems
from serving.home.admission.kuberules.pods import spec_problems
from serving.model.errors import Problem
from serving.model.readinessprobe import with_kubernetes_scheme

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("grpc", "httpGet", "tcpSocket")
# Stands for the port of the container.
_OWN_PORT = 8080


def template_problems(spec: Any, where: str) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    """Yield what is wrong with the spec of a revision's pods."""
    wrong = list(pod_type_problems(spec, where))
    if wrong or not isinstance(spec, dict):
        yield from wrong
        return
    first = [
        {**one, "name": one.get("name") or f"init-{index}"}
        for index, one in enumerate(items_of(spec, "initContainers"))
    ]
    given = items_of(spec, "containers")
    containers = [_with_ports(one, serves=len(given) == 1 or bool(one.get("ports"))) for one in given]
    yield from spec_problems({**spec, "containers": containers, "initContainers": first}, where, is_template=True)
    for field in ("containers", "initContainers"):
        for index, one in enumerate(items_of(spec, field)):
            if map_of(one, "securityContext").get("privileged"):
                yield forbidden(f"{where}.{field}[{index}].securityContext.privileged", "must not be set in a revision")
    for index, one in enumerate(first):
        if items_of(one, "ports"):
            yield forbidden(f"{where}.initContainers[{index}].ports", "field not allowed in an init container")


def _with_ports(container: Json, *, serves: bool) -> Json:
    """A container as its Deployment has it: probes name a port, and port 0 is the default one."""
    made = {
        **container,
        "ports": [
            {**port, "containerPort": port.get("containerPort") or _OWN_PORT} for port in items_of(container, "ports")
        ],
    }
    for name in _PROBES:
        probe = container.get(name)
        if probe is not None:
            given = {key: probe[key] for key in _HANDLERS if probe.get(key) is not None}
            made[name] = {**probe, **{key: {**one, "port": one.get("port") or _OWN_PORT} for key, one in given.items()}}
    if serves and container.get("readinessProbe"):
        made["readinessProbe"] = with_kubernetes_scheme(made["readinessProbe"])
    return made
