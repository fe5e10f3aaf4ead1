"""The status of a ScaledWorkload: missing objects, conflicts, and the target of requests.

Input: the workload, and the objects that it names as far as they exist. Output: the status, with a condition for each
kind of problem. The status is informational: activators and the autoscaler read the workload's spec.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from serving.controller.routes.hosts import url_of
from serving.controller.values.conditions import Condition, false_condition, ready_of, updated_conditions
from serving.controller.workloads.known import KnownWorkload
from serving.core.model.knative import (
    CONDITION_ACTIVE,
    CONTESTED_ANNOTATION,
    SCALED_WORKLOADS_LABEL,
    ConditionStatus,
    TrafficPath,
)
from serving.core.model.objects import Object, annotations_of, generation_of, key_of, name_of, nested
from serving.core.model.routehosts import inner_host
from serving.core.model.scaledworkload import (
    NAMESPACE_NOT_LABELLED,
    SCALED_ALONE,
    TARGET_RESOLVED,
    TLS_PROTOCOLS,
    ScaledWorkloadSpec,
    WorkloadService,
    WorkloadTarget,
    is_wildcard,
)
from serving.core.settings.annotations import read_annotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster.selectors import written_selector

# Kubernetes' default of timeoutSeconds.
_AFFINITY_S = 10_800
SERVICE_RESOLVED = "ServiceResolved"
SCALING_VALID = "ScalingValid"
HOSTS_CLAIMED = "HostsClaimed"


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as read, with the objects that its status depends on.

    ``fallback`` is the Service of the fallback. ``is_known_kind``: the target's kind is scaled here. ``scalers`` are
    the HorizontalPodAutoscalers of its namespace. ``workloads`` are the ScaledWorkloads of all namespaces.
    ``is_permitted``: its namespace has the label for them. ``is_revision``: a Revision has the same name. ``holders`` are objects of other namespaces that claim its hosts.
    """

    own: KnownWorkload
    target: Object | None = None
    service: Object | None = None
    fallback: Object | None = None
    is_known_kind: bool = True
    scalers: Sequence[Object] = ()
    workloads: Iterable[KnownWorkload] = ()
    is_permitted: bool = True
    is_revision: bool = False
    holders: Mapping[str, str] = {}


def workload_status(
    workload: Object, view: WorkloadView, *, settings: ControllerSettings, scaling: AutoscalerSettings, now: str
) -> Object:
    """The current status of a workload. If the spec is invalid, the conditions say why, and most other fields stay."""
    before = nested(workload, "status") or {}
    observed = {**before, "observedGeneration": generation_of(workload)}
    known = before.get("conditions") or ()
    for field in ("targetPort", "clientAffinitySeconds"):
        observed.pop(field, None)
    spec = view.own.spec
    if spec is None:
        invalid = false_condition(SCALING_VALID, "InvalidSpec", "; ".join(map(str, view.own.problems)))
        return {**observed, "conditions": updated_conditions([invalid, ready_of([invalid])], before=known, now=now)}
    port, service = _service(spec.service, view.service)
    fallback_port = None
    if spec.cold_start.fallback is not None:
        fallback_port, fallback = _service(spec.cold_start.fallback, view.fallback)
        service = service if service.status is ConditionStatus.FALSE else fallback
    if port is not None and (missing := _missing_port(port, spec, view)):
        service = false_condition(SERVICE_RESOLVED, "TargetPortNotFound", missing)
    older = sorted((other for other in view.workloads if other.age < view.own.age), key=lambda other: other.age)
    needed = [
        _target(spec.target, view),
        service,
        _scaling(workload, spec, view, scaling=scaling),
        _hosts(workload, spec, view, older=older),
        _alone(workload, spec.target, view, older=older),
    ]
    desired = _count(view.target, "spec", "replicas", unset=1)
    conditions = [*needed, _active(desired), ready_of(needed)]
    # A scale has the count of its pods only.
    pod_count = _count(view.target, "status", "replicas", unset=0) if _is_scale(view.target) else 0
    ready_count = _count(view.target, "status", "readyReplicas", unset=pod_count)
    counts = {"desiredReplicas": desired, "readyReplicas": ready_count}
    return {
        **observed,
        **({**counts, "selector": _selector(view.target)} if view.target is not None else {}),
        "conditions": updated_conditions(conditions, before=known, now=now),
        "url": _url(workload, spec, settings),
        "address": {"url": _inner_url(workload, settings)},
        "path": TrafficPath.PROXY.value,
        **({} if port is None else {"portName": port.get("name") or ""}),
        **({} if not (client_s := _client_affinity_s(view.service)) else {"clientAffinitySeconds": client_s}),
        **({} if (target_port := _target_port(port, view)) is None else {"targetPort": target_port}),
        **({} if fallback_port is None else {"fallbackPortName": fallback_port.get("name") or ""}),
    }


def scalers_of(target: WorkloadTarget, scalers: Iterable[Object]) -> list[str]:
    """Names of the HorizontalPodAutoscalers that scale a target."""
    wanted = (target.kind, target.name)
    references = ((name_of(scaler), nested(scaler, "spec", "scaleTargetRef") or {}) for scaler in scalers)
    return sorted(name for name, reference in references if (reference.get("kind"), reference.get("name")) == wanted)


def _target(target: WorkloadTarget, view: WorkloadView) -> Condition:
    if not view.is_permitted:
        message = (
            f"namespace {view.own.key[0]} lacks the label {SCALED_WORKLOADS_LABEL}: enabled, "
            "and workload-namespaces in config-controller is not all"
        )
        return false_condition(TARGET_RESOLVED, NAMESPACE_NOT_LABELLED, message)
    if not view.is_known_kind:
        message = f"{target.kind} of {target.api_version} has no scale, or the controller may not read it"
        return false_condition(TARGET_RESOLVED, "KindNotScaled", message)
    if view.target is None:
        return false_condition(TARGET_RESOLVED, "TargetNotFound", f"there is no {target.shown} in this namespace")
    return _true(TARGET_RESOLVED)


def _target_port(port: Object | None, view: WorkloadView) -> int | str | None:
    """The port of the target's pods, by number or name; None unless the Service selects them all, without TLS.

    The autoscaler announces the address of each ready pod, before an EndpointSlice has it.
    """
    selector = nested(view.service, "spec", "selector") or {}
    labels = nested(view.target, "spec", "template", "metadata", "labels") or {}
    if port is None or not selector or not selector.items() <= labels.items():
        return None
    target_port: int | str | None = port.get("targetPort") or port.get("port")
    return None if str(port.get("appProtocol") or "").lower() in TLS_PROTOCOLS else target_port


def _client_affinity_s(service: Object | None) -> int:
    """How long requests of a client's address keep their pod, in seconds; 0 without ``sessionAffinity: ClientIP``."""
    if nested(service, "spec", "sessionAffinity") != "ClientIP":
        return 0
    return int(nested(service, "spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds") or _AFFINITY_S)


def _missing_port(port: Object, spec: ScaledWorkloadSpec, view: WorkloadView) -> str:
    """The message for a Service port that no container of the target has; "" otherwise."""
    name, template = port.get("targetPort"), nested(view.target, "spec", "template", "spec") or {}
    containers = [*(template.get("containers") or ()), *(template.get("initContainers") or ())]
    ports = [entry.get("name") for container in containers for entry in container.get("ports") or ()]
    if not isinstance(name, str) or not containers or name in ports:
        return ""
    return f"Service {spec.service.name} leads to the port {name}, which no container of {spec.target.shown} has"


def _service(wanted: WorkloadService, service: Object | None) -> tuple[Object | None, Condition]:
    """The port of a Service that a workload uses, and the condition. None if the port is missing or ambiguous."""
    name, port = wanted.name, wanted.port
    if service is None:
        return None, false_condition(
            SERVICE_RESOLVED, "ServiceNotFound", f"there is no Service {name} in this namespace"
        )
    ports: list[Object] = nested(service, "spec", "ports") or []
    shown = ", ".join(f"{entry.get('port')} ({entry.get('name') or 'no name'})" for entry in ports)
    if port is None:
        if len(ports) == 1:
            return ports[0], _true(SERVICE_RESOLVED)
        message = f"Service {name} has the ports {shown or 'none'}: name one in spec.service.port"
        return None, false_condition(SERVICE_RESOLVED, "PortNotNamed", message)
    for entry in ports:
        if port in (entry.get("port"), entry.get("name")):
            return entry, _true(SERVICE_RESOLVED)
    return None, false_condition(
        SERVICE_RESOLVED, "PortNotFound", f"Service {name} has no port {port}; it has {shown or 'none'}"
    )


def _scaling(
    workload: Object, spec: ScaledWorkloadSpec, view: WorkloadView, *, scaling: AutoscalerSettings
) -> Condition:
    keys = read_annotations({**annotations_of(workload), **spec.scaling.annotations}, scaling)
    if problems := (*keys.problems, *view.own.problems):
        return false_condition(SCALING_VALID, "InvalidScaling", "; ".join(map(str, problems)))
    return _true(SCALING_VALID)


def _hosts(
    workload: Object, spec: ScaledWorkloadSpec, view: WorkloadView, *, older: Sequence[KnownWorkload]
) -> Condition:
    """The status condition for the hosts: each belongs to the namespace whose workload claimed it first."""
    if view.is_revision:
        message = f"a Revision is called {name_of(workload)}, too, and is served in its place: give the ScaledWorkload another name"
        return false_condition(HOSTS_CLAIMED, "NameTaken", message)
    own = spec.all_hosts
    if foreign := sorted(own & view.holders.keys()):
        return false_condition(
            HOSTS_CLAIMED, "HostTaken", f"the host {foreign[0]} belongs to {view.holders[foreign[0]]}"
        )
    for other in older:
        if other.spec is None:
            continue
        if other.key[0] == key_of(workload)[0]:
            if shared := sorted(spec.matches & other.spec.matches):
                text = f"the older ScaledWorkload {other.key[1]} gets all requests for {''.join(shared[0][:2])}"
                return false_condition(HOSTS_CLAIMED, "RuleTaken", f"{text}: let hosts, paths or headers differ")
            continue
        if taken := sorted(own & other.spec.all_hosts):
            message = f"the host {taken[0]} belongs to ScaledWorkload {'/'.join(other.key)}, which is older"
            return false_condition(HOSTS_CLAIMED, "HostTaken", message)
    return _true(HOSTS_CLAIMED)


def _alone(
    workload: Object, target: WorkloadTarget, view: WorkloadView, *, older: Sequence[KnownWorkload]
) -> Condition:
    if names := scalers_of(target, view.scalers):
        message = f"HorizontalPodAutoscaler {names[0]} scales {target.shown}, too: delete it or this ScaledWorkload"
        return false_condition(SCALED_ALONE, "HorizontalPodAutoscaler", message)
    if contested := annotations_of(workload).get(CONTESTED_ANNOTATION):
        return false_condition(SCALED_ALONE, "ScaledByAnother", contested)
    for other in older:
        if other.spec is not None and other.key[0] == key_of(workload)[0] and other.spec.target == target:
            message = f"the older ScaledWorkload {other.key[1]} scales {target.shown}: delete one of them"
            return false_condition(SCALED_ALONE, "SameTarget", message)
    return _true(SCALED_ALONE)


def _active(desired: int) -> Condition:
    if desired:
        return Condition(type=CONDITION_ACTIVE, status=ConditionStatus.TRUE, informative=True)
    return Condition(
        type=CONDITION_ACTIVE,
        status=ConditionStatus.FALSE,
        reason="NoTraffic",
        message="The target is scaled to zero; a request starts it.",
        informative=True,
    )


def _url(workload: Object, spec: ScaledWorkloadSpec, settings: ControllerSettings) -> str:
    """The URL of the first exact host and its first path. Without hosts, the cluster-local URL."""
    for rule in spec.routing:
        for host in rule.hosts:
            if not is_wildcard(host):
                path = rule.paths[0].rstrip("/") if rule.paths else ""
                return url_of(host, settings.public_port) + path
    return _inner_url(workload, settings)


def _inner_url(workload: Object, settings: ControllerSettings) -> str:
    namespace, name = key_of(workload)
    return f"http://{inner_host(name, namespace, settings.host_rules)}"


def _count(resource: Object | None, *path: str, unset: int) -> int:
    count = nested(resource, *path)
    return unset if count is None else int(count)


def _is_scale(target: Object | None) -> bool:
    return target is not None and target.get("kind") == "Scale"


def _selector(target: Object) -> str:
    if _is_scale(target):
        return str(nested(target, "status", "selector") or "")
    return written_selector(nested(target, "spec", "selector") or {}).text


def _true(condition_type: str) -> Condition:
    return Condition(type=condition_type, status=ConditionStatus.TRUE)
