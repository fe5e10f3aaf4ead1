"""Fills in the defaults of Kubernetes' own kinds, as a kube-apiserver does. Pure.

Input: a user's object, and the previous object. Output: the object with each omitted field that a server sets. The
function is idempotent. Unchanged parts stay unchanged, because a changed template replaces pods.
``tests/conformance/data/defaults.jsonl`` has a real server's results. Objects of controllers are complete and stay
unchanged. Follows Kubernetes 1.36, pkg/apis/core/v1/defaults.go and those of other groups.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from serving.core.model.objects import Object, object_at
from serving.home.admission.defaults import with_requests
from serving.home.schemas.patch import same_json
from serving.net.cluster.kinds import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    HORIZONTAL_POD_AUTOSCALER,
    LIMIT_RANGE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SECRET,
    SERVICE,
    Kind,
)

Json = dict[str, Any]

_POD: Final = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
_CONTAINER: Final = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_PROBE: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_HTTP: Final = {"path": "/", "scheme": "HTTP"}
_FILE_MODE: Final = 0o644
_TOKEN_LIFE_S: Final = 3600
_AFFINITY_S: Final = 10800
_SHARE: Final = "25%"
_HPA_TARGET_PERCENT: Final = 80
_SCALE_UP: Final = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN: Final = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}


def with_kube_defaults(kind: Kind, whole: Object, old: Object | None = None) -> Object:
    """The object with all defaults of its kind. Invalid parts, and parts equal to those of ``old``, stay unchanged."""
    fill = _BY_KIND.get(kind)
    spec, before = whole.get("spec"), None if old is None else old.get("spec")
    if fill is None or (old is not None and isinstance(spec, dict) and same_json(spec, before)):
        return whole
    filled = fill(whole)
    if kind == DEPLOYMENT and isinstance(spec, dict) and isinstance(before, dict):
        template = spec.get("template")
        if same_json(template, before.get("template")):
            return {**filled, "spec": {**filled["spec"], "template": template}}
    return filled


def _pod(whole: Json) -> Json:
    whole = with_requests(_within(whole, "spec", _pod_spec))
    spec = whole.get("spec")
    if not isinstance(spec, dict):
        return whole
    spec = {"enableServiceLinks": True, **spec}
    if spec.get("hostNetwork") is True:
        for field in ("containers", "initContainers"):
            spec = _each(spec, field, lambda container: _each(container, "ports", _host_port))
    return {**whole, "spec": spec}


def _host_port(port: Json) -> Json:
    return {**port, "hostPort": port.get("hostPort") or port.get("containerPort")}


def _deployment(whole: Json) -> Json:
    def filled(spec: Json) -> Json:
        spec = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": {}, **spec}
        spec = _within(spec, "template", lambda template: _within(template, "spec", _pod_spec))
        return _within(spec, "strategy", _strategy)

    return _within(whole, "spec", filled)


def _strategy(strategy: Json) -> Json:
    strategy = {"type": "RollingUpdate", **strategy}
    if strategy["type"] != "RollingUpdate":
        return strategy
    rolling = strategy.get("rollingUpdate") or {}
    shares = {"maxUnavailable": _SHARE, "maxSurge": _SHARE}
    return {**strategy, "rollingUpdate": {**shares, **rolling} if isinstance(rolling, dict) else rolling}


def _pod_spec(spec: Json) -> Json:
    spec = {**_POD, **spec}
    for field in ("containers", "initContainers"):
        spec = _each(spec, field, _container)
    return _each(spec, "volumes", _volume)


def _container(container: Json) -> Json:
    container = {**_CONTAINER, "imagePullPolicy": _pull_policy(container.get("image")), **container}
    container = _each(container, "ports", lambda port: {"protocol": "TCP", **port})
    container = _each(container, "env", lambda variable: _within(variable, "valueFrom", _variable_source))
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        container = _within(container, name, lambda probe: {**_PROBE, **_handler(probe)})
    return _within(
        container,
        "lifecycle",
        lambda hooks: _within(_within(hooks, "postStart", _handler), "preStop", _handler),
    )


def _pull_policy(image: object) -> str:
    """The default pull policy: Always for the tag "latest" or no tag, else IfNotPresent."""
    name = str(image or "").rpartition("/")[2]
    tag = name.partition(":")[2]
    return "IfNotPresent" if "@" in name or tag not in {"", "latest"} else "Always"


def _handler(handler: Json) -> Json:
    handler = _within(handler, "httpGet", lambda call: {**_HTTP, **call})
    return _within(handler, "grpc", lambda call: {"service": "", **call})


def _variable_source(source: Json) -> Json:
    source = _within(source, "fieldRef", _of_v1)
    return _within(source, "resourceFieldRef", lambda reference: {"divisor": "0", **reference})


def _of_v1(reference: Json) -> Json:
    return {"apiVersion": "v1", **reference}


def _volume(volume: Json) -> Json:
    if not volume.keys() - {"name"}:
        return {**volume, "emptyDir": {}}
    volume = _within(volume, "hostPath", lambda folder: {"type": "", **folder})
    for name in ("configMap", "secret", "projected", "downwardAPI"):
        volume = _within(volume, name, lambda source: {"defaultMode": _FILE_MODE, **source})
    volume = _within(volume, "downwardAPI", _downward)
    return _within(volume, "projected", lambda source: _each(source, "sources", _projection))


def _projection(source: Json) -> Json:
    source = _within(source, "serviceAccountToken", lambda token: {"expirationSeconds": _TOKEN_LIFE_S, **token})
    return _within(source, "downwardAPI", _downward)


def _downward(source: Json) -> Json:
    return _each(source, "items", _variable_source)


def _service(whole: Json) -> Json:
    def filled(spec: Json) -> Json:
        spec = {"type": "ClusterIP", "sessionAffinity": "None", **spec}
        spec = _each(spec, "ports", lambda port: {"protocol": "TCP", "targetPort": port.get("port"), **port})
        if spec["type"] == "ExternalName":
            return spec
        spec = {"internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", **spec}
        if spec["sessionAffinity"] == "ClientIP":
            spec = {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": _AFFINITY_S}}, **spec}
        if spec["type"] in {"LoadBalancer", "NodePort"}:
            spec = {"externalTrafficPolicy": "Cluster", **spec}
        if spec["type"] == "LoadBalancer":
            spec = {"allocateLoadBalancerNodePorts": True, **spec}
        return {"clusterIPs": ["None"], **spec} if spec.get("clusterIP") == "None" else spec

    return _within(whole, "spec", filled)


def _limit_range(whole: Json) -> Json:
    def filled(item: Json) -> Json:
        if item.get("type") != "Container":
            return item
        most, least, usual = (object_at(item, key) for key in ("max", "min", "default"))
        usual = {**most, **usual}
        requests = {**least, **usual, **object_at(item, "defaultRequest")}
        defaults = {"default": usual, "defaultRequest": requests}
        return {**item, **{key: amounts for key, amounts in defaults.items() if amounts}}

    return _within(whole, "spec", lambda spec: _each(spec, "limits", filled))


def _autoscaler(whole: Json) -> Json:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": _HPA_TARGET_PERCENT}}

    def filled(spec: Json) -> Json:
        spec = {"minReplicas": 1, **spec}
        if not spec.get("metrics"):
            spec["metrics"] = [{"type": "Resource", "resource": cpu}]
        return _within(
            spec,
            "behavior",
            lambda rules: {
                **rules,
                "scaleUp": {**_SCALE_UP, **(rules.get("scaleUp") or {})},
                "scaleDown": {**_SCALE_DOWN, **(rules.get("scaleDown") or {})},
            },
        )

    return _within(whole, "spec", filled)


def _endpoint_slice(whole: Json) -> Json:
    whole = _each(whole, "endpoints", lambda endpoint: {"conditions": {}, **endpoint})
    return _each(whole, "ports", lambda port: {"name": "", "protocol": "TCP", **port})


def _claim(whole: Json) -> Json:
    return _within(whole, "spec", lambda spec: {"volumeMode": "Filesystem", **spec})


def _secret(whole: Json) -> Json:
    return {"type": "Opaque", **whole}


def _within(owner: Json, key: str, fill: Callable[[Json], Json]) -> Json:
    """The object ``owner`` with ``fill`` applied to its member ``key``. A missing or invalid member stays unchanged."""
    value = owner.get(key)
    return {**owner, key: fill(_present(value))} if isinstance(value, dict) else owner


def _each(owner: Json, key: str, fill: Callable[[Json], Json]) -> Json:
    """The object ``owner`` with ``fill`` applied to each element of the list ``key``, if it is a list."""
    items = owner.get(key)
    if not isinstance(items, list):
        return owner
    return {**owner, key: [fill(_present(item)) if isinstance(item, dict) else item for item in items]}


def _present(value: Json) -> Json:
    """The object without its null members: null means an unset field."""
    return {key: field for key, field in value.items() if field is not None}


_BY_KIND: Final[Mapping[Kind, Callable[[Json], Json]]] = {
    POD: _pod,
    DEPLOYMENT: _deployment,
    SERVICE: _service,
    SECRET: _secret,
    PERSISTENT_VOLUME_CLAIM: _claim,
    LIMIT_RANGE: _limit_range,
    HORIZONTAL_POD_AUTOSCALER: _autoscaler,
    ENDPOINT_SLICE: _endpoint_slice,
}
