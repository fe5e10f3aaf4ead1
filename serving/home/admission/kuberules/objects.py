"""Validates objects of Kubernetes' own kinds as a real API server. Pure.

Input: the kind and the whole object; output: a ``Problem`` for each field that cannot be decoded, or for each violation,
at the field that a kube-apiserver names. Follows the packages ``pkg/apis/*/validation`` of
k8s.io/kubernetes; ``tests/conformance/data/manifests.jsonl`` has its answers.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from serving.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    HORIZONTAL_POD_AUTOSCALER,
    LEASE,
    POD,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE,
    Kind,
)
from serving.home.admission.kuberules.containers import PROTOCOLS
from serving.home.admission.kuberules.decoding import type_problems
from serving.home.admission.kuberules.findings import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    PORT_MAX,
    Json,
    at_least,
    chosen,
    duplicates,
    expression_problems,
    forbidden,
    invalid,
    is_address,
    is_config_key,
    is_label,
    is_qualified,
    is_subdomain,
    items_of,
    label_problems,
    map_of,
    port_problems,
    required,
    text_problems,
    unsupported,
)
from serving.home.admission.kuberules.pods import spec_problems
from serving.home.schemas.crds import builtin_schemas, crds, schema_of
from serving.model.errors import Problem
from serving.model.objects import annotations_of, name_of

_PERCENT = re.compile(r"\d+%\Z")
_WHOLE_PERCENT = 100
# Seconds that a Deployment waits for progress if nothing is said.
_PROGRESS_DEADLINE_S = 600
_KEYS_OF_TYPE = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_BASIC_AUTH = ("username", "password")
_ACCOUNT = "kubernetes.io/service-account.name"


def undecodable(kind: Kind, whole: Json) -> list[Problem]:
    """The fields of the wrong type; of a custom resource only those of its metadata."""
    schema = schema_of(kind)
    if kind in crds():
        schema = {"properties": {"metadata": schema["properties"]["metadata"]}}
    return list(type_problems(schema, whole, ""))


def pod_type_problems(spec: object, where: str) -> Iterator[Problem]:
    """Yield the fields of a pod's spec that have the wrong type."""
    yield from type_problems(builtin_schemas()["core.v1.PodSpec"], spec, where)


def kube_problems(kind: Kind, whole: Json) -> Iterator[Problem]:
    """Yield the problems of a decodable object of Kubernetes' own kinds."""
    if kind in _CHECKS:
        yield from _CHECKS[kind](whole)


def _pod(whole: Json) -> Iterator[Problem]:
    yield from spec_problems(map_of(whole, "spec"), "spec")


def _config_map(whole: Json) -> Iterator[Problem]:
    data, binary = map_of(whole, "data"), map_of(whole, "binaryData")
    for field, entries in (("data", data), ("binaryData", binary)):
        yield from _key_problems(entries, field)
    for key in data.keys() & binary.keys():
        yield invalid(f"data[{key}]", key, "in one of data and binaryData")


def _key_problems(entries: Json, where: str) -> Iterator[Problem]:
    for key in entries:
        if not is_config_key(key):
            yield invalid(f"{where}[{key}]", key, "at most 253 letters, digits, '-', '_' and '.'")


def _secret(whole: Json) -> Iterator[Problem]:
    data = {**map_of(whole, "data"), **map_of(whole, "stringData")}
    yield from _key_problems(data, "data")
    kind = whole.get("type") or ""
    for key in _KEYS_OF_TYPE.get(kind, ()):
        if key not in data:
            yield required(f"data[{key}]", f"{key}, for the type {kind}")
    if kind == "kubernetes.io/basic-auth" and not any(key in data for key in _BASIC_AUTH):
        yield from (required(f"data[{key}]", "a username or a password") for key in _BASIC_AUTH)
    if kind == "kubernetes.io/service-account-token" and not annotations_of(whole).get(_ACCOUNT):
        yield required(f"metadata.annotations[{_ACCOUNT}]", "the name of a ServiceAccount")
    if kind.startswith("kubernetes.io/dockerc") and (text := _docker_text(whole, _KEYS_OF_TYPE[kind][0])) is not None:
        try:
            json.loads(text)
        except ValueError:
            yield invalid(f"data[{_KEYS_OF_TYPE[kind][0]}]", "<secret contents redacted>", "JSON")


def _docker_text(whole: Json, key: str) -> bytes | str | None:
    if (text := map_of(whole, "stringData").get(key)) is not None:
        return str(text)
    encoded = map_of(whole, "data").get(key)
    return None if encoded is None else base64.b64decode(encoded)


def _service(whole: Json) -> Iterator[Problem]:
    spec, name = map_of(whole, "spec"), name_of(whole)
    if name and not is_label(name):
        yield invalid("metadata.name", name, DNS_LABEL)
    kind = spec.get("type") or "ClusterIP"
    yield from chosen(spec, "type", "spec", choices=("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"))
    if kind == "ExternalName":
        external = (spec.get("externalName") or "").removesuffix(".")
        yield from text_problems(external, "spec.externalName", DNS_SUBDOMAIN, is_valid=is_subdomain)
    elif not items_of(spec, "ports") and spec.get("clusterIP") != "None":
        yield required("spec.ports", "a list of ports")
    has_node_ports = kind in {"LoadBalancer", "NodePort"}
    yield from _service_port_problems(items_of(spec, "ports"), has_node_ports=has_node_ports)
    yield from label_problems(map_of(spec, "selector"), "spec.selector")
    yield from chosen(spec, "sessionAffinity", "spec", choices=("ClientIP", "None"))
    yield from chosen(spec, "internalTrafficPolicy", "spec", choices=("Cluster", "Local"))
    yield from chosen(spec, "ipFamilyPolicy", "spec", choices=("SingleStack", "PreferDualStack", "RequireDualStack"))
    policy = spec.get("externalTrafficPolicy")
    if policy and not (has_node_ports and policy in {"Cluster", "Local"}):
        yield invalid("spec.externalTrafficPolicy", policy, "Cluster or Local, of a NodePort or LoadBalancer")
    yield from _service_address_problems(spec)


def _service_address_problems(spec: Json) -> Iterator[Problem]:
    address = spec.get("clusterIP") or ""
    if address not in {"", "None"} and not is_address(address):
        yield invalid("spec.clusterIPs[0]", address, "an IP address, None or nothing")
    for field in ("externalIPs", "loadBalancerSourceRanges"):
        for index, one in enumerate(items_of(spec, field)):
            if not is_address(one.partition("/")[0]):
                yield invalid(f"spec.{field}[{index}]", one, "an IP address")
    for index, family in enumerate(items_of(spec, "ipFamilies")):
        if family not in {"IPv4", "IPv6"}:
            yield unsupported(f"spec.ipFamilies[{index}]", family, ("IPv4", "IPv6"))


def _service_port_problems(ports: list[Json], *, has_node_ports: bool) -> Iterator[Problem]:
    seen: set[object] = set()
    for index, port in enumerate(ports):
        at, name, number = f"spec.ports[{index}]", port.get("name") or "", port.get("port") or 0
        if not name and len(ports) > 1:
            yield required(f"{at}.name", "a name for each of several ports")
        elif name and not is_label(name):
            yield invalid(f"{at}.name", name, DNS_LABEL)
        if not 0 < number <= PORT_MAX:
            yield invalid(f"{at}.port", number, f"a port, 1 to {PORT_MAX}")
        yield from chosen(port, "protocol", at, choices=PROTOCOLS)
        # Without one it is the port itself.
        yield from port_problems(port.get("targetPort") or number, f"{at}.targetPort")
        node = port.get("nodePort") or 0
        if node and not has_node_ports:
            yield forbidden(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'")
        key = (port.get("protocol") or "TCP", number)
        if key in seen:
            yield Problem(where=at, what=f"Duplicate value: {number}/{key[0]}", expected="a port of its own")
        seen.add(key)
    yield from duplicates([port.get("name") for port in ports], "spec.ports", ".name")


def _selector_problems(selector: Json, where: str) -> Iterator[Problem]:
    yield from label_problems(map_of(selector, "matchLabels"), f"{where}.matchLabels")
    yield from expression_problems(items_of(selector, "matchExpressions"), f"{where}.matchExpressions")


def _deployment(whole: Json) -> Iterator[Problem]:
    spec = map_of(whole, "spec")
    template = map_of(spec, "template")
    selector, metadata = map_of(spec, "selector"), map_of(template, "metadata")
    labels = map_of(metadata, "labels")
    for field, least in (("replicas", 0), ("minReadySeconds", 0), ("revisionHistoryLimit", 0)):
        yield from at_least(spec, field, "spec", least=least)
    yield from _progress_problems(spec)
    wrong = list(_selector_problems(selector, "spec.selector"))
    if not map_of(selector, "matchLabels") and not items_of(selector, "matchExpressions"):
        yield required("spec.selector", "matchLabels, labels of the template")
        if spec.get("selector") is None:
            yield invalid("spec.template.metadata.labels", "", "the labels of the selector")
    elif wrong:
        yield from wrong
        yield invalid("spec.selector", "", "a label selector")
    elif not _is_selected(selector, labels):
        what = "Invalid value: `selector` does not match template `labels`"
        yield Problem(where="spec.template.metadata.labels", what=what, expected="the labels of the selector")
    # A kube-apiserver names these two without "metadata".
    yield from label_problems(labels, "spec.template.labels")
    for key in map_of(metadata, "annotations"):
        if not is_qualified(key.lower()):
            yield invalid("spec.template.annotations", key, "a name like example.com/name")
    yield from _strategy_problems(map_of(spec, "strategy"), "spec.strategy")
    yield from spec_problems(map_of(template, "spec"), "spec.template.spec", is_template=True)


def _is_selected(selector: Json, labels: Json) -> bool:
    if not map_of(selector, "matchLabels").items() <= labels.items():
        return False
    for one in items_of(selector, "matchExpressions"):
        has, is_in = one["key"] in labels, labels.get(one["key"]) in items_of(one, "values")
        if not {"In": is_in, "NotIn": not is_in, "Exists": has, "DoesNotExist": not has}[one["operator"]]:
            return False
    return True


def _progress_problems(spec: Json) -> Iterator[Problem]:
    deadline_s = spec.get("progressDeadlineSeconds")
    least_s = spec.get("minReadySeconds") or 0
    deadline_s = _PROGRESS_DEADLINE_S if deadline_s is None else deadline_s
    if deadline_s < 0 or deadline_s <= least_s:
        yield invalid("spec.progressDeadlineSeconds", deadline_s, f"greater than minReadySeconds, {least_s}")


def _strategy_problems(strategy: Json, where: str) -> Iterator[Problem]:
    kind, rolling = strategy.get("type") or "RollingUpdate", strategy.get("rollingUpdate")
    if kind not in {"Recreate", "RollingUpdate"}:
        yield unsupported(where, kind, ("Recreate", "RollingUpdate"))
    elif kind == "Recreate" and rolling is not None:
        yield forbidden(f"{where}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
    elif kind == "RollingUpdate":
        given, at = rolling or {}, f"{where}.rollingUpdate"
        for field in ("maxUnavailable", "maxSurge"):
            yield from _share_problems(given.get(field, "25%"), f"{at}.{field}", is_bounded=field == "maxUnavailable")
        if given.get("maxSurge", 1) in {0, "0%"} and given.get("maxUnavailable", 1) in {0, "0%"}:
            yield invalid(f"{at}.maxUnavailable", 0, "more than 0 when `maxSurge` is 0")


def _share_problems(value: object, where: str, *, is_bounded: bool) -> Iterator[Problem]:
    if isinstance(value, str):
        if not _PERCENT.match(value) or (is_bounded and int(value[:-1]) > _WHOLE_PERCENT):
            yield invalid(where, value, "a percentage such as 25%")
    elif isinstance(value, int) and value < 0:
        yield invalid(where, value, "greater than or equal to 0")


def _autoscaler(whole: Json) -> Iterator[Problem]:
    spec = map_of(whole, "spec")
    least, most, target = spec.get("minReplicas"), spec.get("maxReplicas") or 0, map_of(spec, "scaleTargetRef")
    if least is not None and least < 1:
        yield invalid("spec.minReplicas", least, "greater than or equal to 1")
    if most < 1:
        yield invalid("spec.maxReplicas", most, "greater than 0")
    elif most < (least or 0):
        yield invalid("spec.maxReplicas", most, f"greater than or equal to minReplicas, {least}")
    yield from (required(f"spec.scaleTargetRef.{key}") for key in ("kind", "name") if not target.get(key))


def _budget(whole: Json) -> Iterator[Problem]:
    spec = map_of(whole, "spec")
    given = [field for field in ("minAvailable", "maxUnavailable") if spec.get(field) is not None]
    if len(given) > 1:
        yield invalid("spec", "", "without minAvailable or without maxUnavailable")
    for field in given:
        yield from _share_problems(spec[field], f"spec.{field}", is_bounded=True)


def _lease(whole: Json) -> Iterator[Problem]:
    spec = map_of(whole, "spec")
    yield from at_least(spec, "leaseDurationSeconds", "spec", least=1)
    yield from at_least(spec, "leaseTransitions", "spec", least=0)


def _slice(whole: Json) -> Iterator[Problem]:
    kind, ports = whole.get("addressType") or "", items_of(whole, "ports")
    kinds = ("FQDN", "IPv4", "IPv6")
    if kind not in kinds:
        yield unsupported("addressType", kind, kinds) if kind else required("addressType", "IPv4, IPv6 or FQDN")
        return
    for index, endpoint in enumerate(items_of(whole, "endpoints")):
        at, addresses = f"endpoints[{index}].addresses", items_of(endpoint, "addresses")
        if not addresses:
            yield required(at, "an address")
        for number, address in enumerate(addresses):
            if kind != "FQDN" and not is_address(address):
                yield invalid(f"{at}[{number}]", address, "an IP address")
    for index, port in enumerate(ports):
        if port.get("name") and not is_label(port["name"]):
            yield invalid(f"ports[{index}].name", port["name"], DNS_LABEL)
        yield from chosen(port, "protocol", f"ports[{index}]", choices=PROTOCOLS)
    seen: set[str] = set()
    for index, name in enumerate(port.get("name") or "" for port in ports):
        if name in seen:
            yield Problem(where=f"ports[{index}].name", what=f'Duplicate value: "{name}"', expected="a name of its own")
        seen.add(name)


_CHECKS: Mapping[Kind, Callable[[Json], Iterator[Problem]]] = MappingProxyType(
    {
        POD: _pod,
        CONFIG_MAP: _config_map,
        SECRET: _secret,
        SERVICE: _service,
        DEPLOYMENT: _deployment,
        HORIZONTAL_POD_AUTOSCALER: _autoscaler,
        POD_DISRUPTION_BUDGET: _budget,
        LEASE: _lease,
        ENDPOINT_SLICE: _slice,
    }
)
