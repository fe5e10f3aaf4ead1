"""Rules of a kube-apiserver for built-in kinds beyond types, for the fields that this project writes.

Each rule follows the server's own validation: pkg/apis/{core,apps,discovery,coordination,autoscaling}/validation and
apimachinery's of metadata. Input: a stored object; output: each violation with its path. ``strict`` checks the
types. Other fields are not validated.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from serving.core.model.quantity import parse_bytes, parse_millicores

Json = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\Z")
_NAME_MAX, _LABEL_MAX, _ANNOTATIONS_MAX = 253, 63, 256 * 1024
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_ENDPOINTS_MAX, _ADDRESSES_MAX = 1000, 100
_TOKEN_MIN_S = 600


def objections(one: Json) -> list[str]:
    """All violations; none for kinds unknown to this module."""
    rules = _RULES.get(one["kind"])
    return [*_metadata(one["metadata"], "metadata"), *(rules(one) if rules else ())]


def _metadata(metadata: Json, path: str) -> Iterator[str]:
    name = metadata.get("name", "")
    if name and not (_SUBDOMAIN.match(name) and len(name) <= _NAME_MAX):
        yield f"{path}.name: {name!r}"
    for key, value in (metadata.get("labels") or {}).items():
        yield from _qualified(key, f"{path}.labels")
        if not _VALUE.match(value) or len(value) > _LABEL_MAX:
            yield f"{path}.labels.{key}: {value!r}"
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        yield from _qualified(key.lower(), f"{path}.annotations")
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS_MAX:
        yield f"{path}.annotations: too long"
    owners = metadata.get("ownerReferences") or ()
    for number, owner in enumerate(owners):
        missing = [key for key in ("apiVersion", "kind", "name", "uid") if not owner.get(key)]
        if missing:
            yield f"{path}.ownerReferences[{number}]: no {missing}"
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        yield f"{path}.ownerReferences: two controllers"


def _qualified(key: str, path: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.match(prefix) and len(prefix) <= _NAME_MAX):
        yield f"{path}: prefix of {key!r}"
    if not name or not _VALUE.match(name) or len(name) > _LABEL_MAX:
        yield f"{path}: {key!r}"


def _deployment(one: Json) -> Iterator[str]:
    spec, template = one["spec"], one["spec"]["template"]
    labels = template.get("metadata", {}).get("labels") or {}
    wanted = spec["selector"].get("matchLabels") or {}
    if not wanted or not wanted.items() <= labels.items():
        yield f"spec.selector: {wanted} does not match {labels}"
    if spec.get("replicas", 1) < 0:
        yield "spec.replicas: negative"
    if spec.get("progressDeadlineSeconds", 600) <= spec.get("minReadySeconds", 0):
        yield "spec.progressDeadlineSeconds: must be greater than minReadySeconds"
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    if rolling.get("maxUnavailable") == 0 and rolling.get("maxSurge") == 0:
        yield "spec.strategy.rollingUpdate: both are 0"
    yield from _metadata(template.get("metadata") or {}, "spec.template.metadata")
    yield from _pod_spec(template["spec"], "spec.template.spec")


def _pod(one: Json) -> Iterator[str]:
    yield from _pod_spec(one["spec"], "spec")
    status = one.get("status") or {}
    addresses = [entry["ip"] for entry in status.get("podIPs") or ()]
    if addresses and status.get("podIP", addresses[0]) != addresses[0]:
        yield "status.podIP: not the first of podIPs"
    yield from (f"status.podIPs: {address}" for address in addresses if not _family(address))
    names = {container["name"] for container in one["spec"]["containers"]}
    for container in status.get("containerStatuses") or ():
        if container["name"] not in names | {"queue-proxy"}:
            yield f"status.containerStatuses: {container['name']}"


def _pod_spec(spec: Json, path: str) -> Iterator[str]:
    if not spec.get("containers"):
        yield f"{path}.containers: none"
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        yield f"{path}.terminationGracePeriodSeconds: negative"
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    yield from _twice(volumes, f"{path}.volumes")
    for volume in spec.get("volumes") or ():
        yield from _volume(volume, f"{path}.volumes.{volume['name']}")
    yield from _twice([container["name"] for container in spec["containers"]], f"{path}.containers")
    for container in spec["containers"]:
        yield from _container(container, volumes, f"{path}.containers.{container['name']}")


def _volume(volume: Json, path: str) -> Iterator[str]:
    if not _LABEL.match(volume["name"]):
        yield f"{path}: not a DNS label"
    if len(volume.keys() - {"name"}) != 1:
        yield f"{path}: not exactly one source"
    for source in (volume.get("projected") or {}).get("sources") or ():
        token = source.get("serviceAccountToken") or {}
        if token and (token.get("expirationSeconds", 3600) < _TOKEN_MIN_S or not token.get("path")):
            yield f"{path}: {token}"


def _container(container: Json, volumes: list[str], path: str) -> Iterator[str]:
    if not _LABEL.match(container["name"]):
        yield f"{path}: not a DNS label"
    if not container.get("image"):
        yield f"{path}.image: missing"
    for variable in container.get("env") or ():
        if not variable["name"] or "=" in variable["name"] or {"value", "valueFrom"} <= variable.keys():
            yield f"{path}.env: {variable}"
    ports = container.get("ports") or ()
    yield from _twice([port["name"] for port in ports if port.get("name")], f"{path}.ports")
    for port in ports:
        if not 1 <= port["containerPort"] <= 65535 or not _is_port_name(port.get("name", "a")):
            yield f"{path}.ports: {port}"
    mounts = container.get("volumeMounts") or ()
    yield from _twice([mount["mountPath"] for mount in mounts], f"{path}.volumeMounts")
    yield from (f"{path}.volumeMounts: {mount['name']}" for mount in mounts if mount["name"] not in volumes)
    for name in ("readinessProbe", "livenessProbe", "startupProbe"):
        if name in container:
            yield from _probe(container[name], name, f"{path}.{name}")
    for hook, handler in (container.get("lifecycle") or {}).items():
        yield from _handler(handler, f"{path}.lifecycle.{hook}")
    yield from _resources(container.get("resources") or {}, f"{path}.resources")


def _probe(probe: Json, name: str, path: str) -> Iterator[str]:
    yield from _handler({key: probe[key] for key in _HANDLERS if key in probe}, path)
    if name == "readinessProbe" and "terminationGracePeriodSeconds" in probe:
        yield f"{path}.terminationGracePeriodSeconds: not for readiness"
    if name != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        yield f"{path}.successThreshold: must be 1"
    for key in ("periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"):
        if probe.get(key, 1) < 0:
            yield f"{path}.{key}: negative"


def _handler(handler: Json, path: str) -> Iterator[str]:
    if len(handler) != 1:
        yield f"{path}: {sorted(handler)} is not exactly one handler"
    for key in ("httpGet", "tcpSocket", "grpc"):
        port = handler.get(key, {"port": 1}).get("port")
        if (isinstance(port, int) and not 1 <= port <= 65535) or not port:
            yield f"{path}.{key}.port: {port!r}"


def _resources(resources: Json, path: str) -> Iterator[str]:
    limits = resources.get("limits") or {}
    for name, asked in (resources.get("requests") or {}).items():
        amount = parse_millicores if name == "cpu" else parse_bytes
        if name in limits and amount(str(asked)) > amount(str(limits[name])):
            yield f"{path}.requests.{name}: above the limit"


def _service(one: Json) -> Iterator[str]:
    name, spec = one["metadata"]["name"], one["spec"]
    if not _LABEL.match(name):
        yield f"metadata.name: {name!r}"
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != "None":
        yield "spec.ports: none"
    if len(ports) > 1 and not all(port.get("name") for port in ports):
        yield "spec.ports: without names"
    yield from _ports(ports, "spec.ports")
    if spec.get("clusterIP") == "None" and spec.get("type", "ClusterIP") != "ClusterIP":
        yield "spec.clusterIP: None, of another type"


def _ports(ports: Iterable[Json], path: str) -> Iterator[str]:
    yield from _twice([port.get("name", "") for port in ports], path)
    for port in ports:
        if not 1 <= port["port"] <= 65535 or port.get("protocol", "TCP") not in {"TCP", "UDP", "SCTP"}:
            yield f"{path}: {port}"
        if port.get("name") and not _LABEL.match(port["name"]):
            yield f"{path}: {port['name']!r}"
        if "appProtocol" in port:
            yield from _qualified(port["appProtocol"], f"{path}.appProtocol")


def _slice(one: Json) -> Iterator[str]:
    if one.get("addressType") not in {"IPv4", "IPv6", "FQDN"}:
        yield "addressType: missing"
    endpoints = one.get("endpoints") or []
    if len(endpoints) > _ENDPOINTS_MAX:
        yield f"endpoints: {len(endpoints)}"
    for endpoint in endpoints:
        addresses = endpoint.get("addresses") or []
        if not 1 <= len(addresses) <= _ADDRESSES_MAX:
            yield f"endpoints: {len(addresses)} addresses"
        yield from (f"endpoints: {each}" for each in addresses if _family(each) != one.get("addressType"))
    yield from _ports(one.get("ports") or (), "ports")
    if any("protocol" not in port for port in one.get("ports") or ()):
        yield "ports: without a protocol"


def _event(one: Json) -> Iterator[str]:
    namespace = one["metadata"]["namespace"]
    about = one["involvedObject"].get("namespace", "")
    if about != namespace and (about or namespace != "default"):
        yield f"involvedObject.namespace: {about!r} in {namespace!r}"
    for key in ("firstTimestamp", "lastTimestamp"):
        if one.get(key) and not _TIME.match(one[key]):
            yield f"{key}: {one[key]!r}"
    if one.get("eventTime") and not (
        one.get("reportingComponent") and one.get("reportingInstance") and one.get("action")
    ):
        yield "eventTime: needs reportingComponent, reportingInstance and action"


def _lease(one: Json) -> Iterator[str]:
    spec = one["spec"]
    if spec.get("leaseDurationSeconds", 1) <= 0 or spec.get("leaseTransitions", 0) < 0:
        yield f"spec: {spec}"
    for key in ("acquireTime", "renewTime"):
        if key in spec and not _MICRO_TIME.match(spec[key]):
            yield f"spec.{key}: {spec[key]!r} is no MicroTime"
    if spec.get("preferredHolder") and not spec.get("strategy"):
        yield "spec.preferredHolder: needs a strategy"


def _autoscaler(one: Json) -> Iterator[str]:
    spec = one["spec"]
    low, high = spec.get("minReplicas", 1), spec["maxReplicas"]
    if not 1 <= low <= high < 2**31:
        yield f"spec: {low} to {high}"
    for name, rules in (spec.get("behavior") or {}).items():
        if not 0 <= rules.get("stabilizationWindowSeconds", 0) <= 3600:
            yield f"spec.behavior.{name}"


def _family(address: str) -> str:
    """Loopback addresses too, which a real server refuses: the suite's own stands on them."""
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""


def _is_port_name(name: str) -> bool:
    return bool(_LABEL.match(name)) and len(name) <= 15 and "--" not in name and re.search("[a-z]", name) is not None


def _twice(names: Iterable[str], path: str) -> Iterator[str]:
    yield from (f"{path}: {name!r} twice" for name, count in Counter(names).items() if count > 1)


_RULES: dict[str, Callable[[Json], Iterator[str]]] = {
    "Deployment": _deployment,
    "EndpointSlice": _slice,
    "Event": _event,
    "HorizontalPodAutoscaler": _autoscaler,
    "Lease": _lease,
    "Pod": _pod,
    "Service": _service,
}
