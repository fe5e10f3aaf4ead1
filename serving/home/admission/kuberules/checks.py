"""Checks behind ``check(NAME)`` in ``config/openapi/rules.yaml``, for rules of Kubernetes' kinds that need code.

Each gets the value of a field, its place, and the context with its object. Follows k8s.io/kubernetes,
pkg/apis/core/validation/validation.go. Pure.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue, Problem
from serving.core.model.objects import annotations_of
from serving.core.model.quantity import parse_quantity
from serving.home.admission.kuberules.formats import (
    FORMATS,
    Json,
    duplicate,
    forbidden,
    invalid,
    items_of,
    map_of,
    required,
    unsupported,
)
from serving.home.pods.sources import ByteBudget, expanded
from serving.net.cluster.selectors import written_selector

# The largest quantity of Kubernetes.
_QUANTITY_MAX = 2**63 - 1
# The default of a kube-apiserver's --service-node-port-range.
_NODE_PORTS = range(30000, 32768)
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_KEYS_OF_TYPE = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_HAS_VALUES = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
_OF_THE_NODE = ("hostNetwork", "hostPID", "hostIPC")
_BASIC_AUTH = ("username", "password")
# The bytes of all values of a ConfigMap or Secret.
_DATA_MAX = 1 << 20
_ACCOUNT = "kubernetes.io/service-account.name"


class Context(msgspec.Struct, frozen=True):
    """The context of a checked value.

    ``is_template``: the value is in a Deployment's template. ``volumes`` are the volumes of its pod. ``owner`` is the
    object that contains the value.
    """

    is_template: bool = False
    volumes: frozenset[str] = frozenset()
    owner: Json = {}
    """The object with the value."""

    def within(self, name: str, whole: Json) -> "Context":
        """The context for the fields of the object ``whole``, which has the schema ``name``."""
        is_template = self.is_template or name == "apps.v1.DeploymentSpec"
        if name != "core.v1.PodSpec":
            return Context(is_template, self.volumes, whole)
        return Context(is_template, frozenset(volume.get("name") or "" for volume in items_of(whole, "volumes")), whole)


def _text(value: object, where: str, name: str) -> Iterator[Problem]:
    """Yield a problem for a missing text, or for a text that violates the format ``name``."""
    form = FORMATS[name]
    if not value:
        yield required(where, form.expected)
    elif not form.fits(value):
        yield invalid(where, value, form.expected)


def labels(value: Mapping[str, str], where: str) -> Iterator[Problem]:
    """Yield a problem for each invalid label."""
    for key, text in value.items():
        yield from _text(key, where, "qualified")
        if text and not FORMATS["label-value"].fits(text):
            yield invalid(where, text, FORMATS["label-value"].expected)


def _other_names(value: Sequence[Json] | None, where: str, context: Context) -> Iterator[Problem]:
    """Check that names of init containers differ from other containers' names in the pod."""
    taken = {container.get("name") for container in items_of(context.owner, "containers")} - {"", None}
    for index, init_container in enumerate(value or ()):
        if init_container.get("name") in taken:
            yield duplicate(f"{where}[{index}].name", init_container["name"])
        taken.add(init_container.get("name"))


def _own_users(value: bool | None, where: str, context: Context) -> Iterator[Problem]:  # noqa: FBT001 - the value of a field
    """For ``hostUsers: false``, check that the pod does not use the node's network, processes, IPC or block devices."""
    if value is not False:
        return
    at, reason = where.removesuffix("hostUsers"), "when `hostUsers` is false"
    yield from (forbidden(f"{at}{field}", reason) for field in _OF_THE_NODE if context.owner.get(field))
    for field in ("initContainers", "containers"):
        for index, container in enumerate(items_of(context.owner, field)):
            if container.get("volumeDevices"):
                yield forbidden(f"{at}{field}[{index}].volumeDevices", reason)


def _host_ports(value: Sequence[Json] | None, where: str, _: Context) -> Iterator[Problem]:
    """Check that no two ports use the same port of the node."""
    seen = set()
    for index, port in enumerate(value or ()):
        key = (port.get("hostPort"), port.get("protocol") or "TCP", port.get("hostIP") or "")
        if key[0] and key in seen:
            yield duplicate(f"{where}[{index}].hostPort", key[0])
        seen.add(key)


def _one_source(value: Json | None, where: str, context: Context) -> Iterator[Problem]:
    if value is not None and (sum(value.get(key) is not None for key in _SOURCES) != 1 or context.owner.get("value")):
        yield invalid(where, "", f"one of {', '.join(_SOURCES)}, without a value beside it")


def _mounts(value: Sequence[Json] | None, where: str, context: Context) -> Iterator[Problem]:
    """Check that mounts name volumes of the pod."""
    for index, mount in enumerate(value or ()):
        if (name := mount.get("name") or "") not in context.volumes:
            what = f'Not found: "{name}"'
            yield Problem(where=f"{where}[{index}].name", what=what, expected="the name of a volume")


def _environment(value: Sequence[Json] | None, where: str, _: Context) -> Iterator[Problem]:
    """Check that the environment variables, once expanded, stay within their limit.

    Values from ConfigMaps, Secrets and fields are unknown here, and count as empty.
    """
    variables: dict[str, str] = {}
    budget = ByteBudget("the environment")
    try:
        for variable in value or ():
            name = variable.get("name") or ""
            budget.spend(len(name))
            variables[name] = expanded(variable.get("value") or "", variables, budget)
    except InvalidValue as error:
        yield Problem(where=where, what=f"Invalid value: must be {error.expected}", expected=error.expected)


def _resources(value: Json | None, where: str, context: Context) -> Iterator[Problem]:
    """Check that requests do not exceed limits and amounts are valid."""
    resources = value or {}
    limits = map_of(resources, "limits")
    # A kube-apiserver first copies limits to missing requests of a pod.
    requests = {**({} if context.is_template else limits), **map_of(resources, "requests")}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _amount(name, amount, f"{where}.{field}[{name}]")
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None and "/" in name:
            yield required(f"{where}.limits", f"a limit of {name}, which cannot be overcommitted")
        elif limit is not None and parse_quantity(str(amount)) > parse_quantity(str(limit)):
            yield invalid(f"{where}.requests", str(amount), f"less than or equal to {name} limit of {limit}")


def _amount(name: str, amount: object, where: str) -> Iterator[Problem]:
    if not FORMATS["qualified"].fits(name):
        yield invalid(where, name, "the name of a resource")
    elif "/" not in name and name not in _RESOURCES and not name.startswith("hugepages-"):
        yield invalid(where, name, f"a standard resource: {', '.join(_RESOURCES)}, or a name with a domain")
    if parse_quantity(str(amount)) < 0:
        yield invalid(where, amount, "greater than or equal to 0")
    elif parse_quantity(str(amount)) > _QUANTITY_MAX:
        # A kube-apiserver reduces it to the maximum.
        yield invalid(where, amount, f"less than or equal to {_QUANTITY_MAX}")
    elif "/" in name and parse_quantity(str(amount)).denominator != 1:
        yield invalid(where, amount, "an integer")


def _downward(value: Sequence[Json] | None, where: str, _: Context) -> Iterator[Problem]:
    """Check the files of a downwardAPI volume. Problems are reported at the volume, as by a kube-apiserver."""
    at = where.removesuffix(".items")
    for file in value or ():
        yield from _text(file.get("path"), f"{at}.path", "path-below")
        if (field := file.get("fieldRef")) is not None:
            yield from _text(field.get("fieldPath"), f"{at}.fieldRef.fieldPath", "field-path")
        elif file.get("resourceFieldRef") is None:
            yield required(at, "a fieldRef or a resourceFieldRef in each item")


def _token_path(value: object, where: str, _: Context) -> Iterator[Problem]:
    """Check the path of a token file. Problems are reported at the volume, as by a kube-apiserver."""
    yield from _text(value, f"{where.partition('.sources[')[0]}.path", "path-below")


def _other_keys(value: Json | None, _: str, context: Context) -> Iterator[Problem]:
    """Check that a ConfigMap's key is not in both data and binaryData."""
    for key in (value or {}).keys() & map_of(context.owner, "data").keys():
        yield invalid(f"data[{key}]", key, "in one of data and binaryData")


def _config_size(_: Json | None, __: str, context: Context) -> Iterator[Problem]:
    """Check the size of a ConfigMap's values."""
    yield from _size(map_of(context.owner, "data"), map_of(context.owner, "binaryData"))


def _secret_size(_: Json | None, __: str, context: Context) -> Iterator[Problem]:
    """Check the size of a Secret's values. A text replaces the value of the same key."""
    texts = map_of(context.owner, "stringData")
    values = {key: value for key, value in map_of(context.owner, "data").items() if key not in texts}
    yield from _size(texts, values)


def _size(texts: Mapping[str, str | None], encoded: Mapping[str, str | None]) -> Iterator[Problem]:
    """Check that texts and values in base64 stay within the limit together."""
    size = sum(len(text.encode()) for text in texts.values() if text)
    size += sum(len(value) * 3 // 4 - value.count("=") for value in encoded.values() if value)
    if size > _DATA_MAX:
        yield Problem(
            where="data",
            what=f"Too long: may not be more than {_DATA_MAX} bytes",
            expected=f"at most {_DATA_MAX} bytes, got {size}",
        )


def _secret_texts(value: Json | None, _: str, __: Context) -> Iterator[Problem]:
    """Check the keys of a Secret's ``stringData``. Problems are reported at ``data``, where the texts are stored."""
    form = FORMATS["config-key"]
    yield from (invalid(f"data[{key}]", key, form.expected) for key in value or () if not form.fits(key))


def _secret_type(value: str | None, _: str, context: Context) -> Iterator[Problem]:
    """Check that a Secret has the keys required by its type."""
    kind, data = value or "", {**map_of(context.owner, "data"), **map_of(context.owner, "stringData")}
    for key in _KEYS_OF_TYPE.get(kind, ()):
        if key not in data:
            yield required(f"data[{key}]", f"{key}, for the type {kind}")
    if kind == "kubernetes.io/basic-auth" and not any(key in data for key in _BASIC_AUTH):
        yield from (required(f"data[{key}]", "a username or a password") for key in _BASIC_AUTH)
    if kind == "kubernetes.io/service-account-token" and not annotations_of(context.owner).get(_ACCOUNT):
        yield required(f"metadata.annotations[{_ACCOUNT}]", "the name of a ServiceAccount")
    if kind.startswith("kubernetes.io/dockerc") and (key := _KEYS_OF_TYPE[kind][0]) in data:
        is_plain = key in map_of(context.owner, "stringData")
        try:
            json.loads(data[key] if is_plain else base64.b64decode(data[key]))
        except ValueError:
            yield invalid(f"data[{key}]", "<secret contents redacted>", "JSON")


def _label_name(value: Json | None, where: str, _: Context) -> Iterator[Problem]:
    """Check that the member ``name`` is a DNS label, because it becomes part of a host."""
    name = (value or {}).get("name")
    if name and not FORMATS["label"].fits(name):
        yield invalid(f"{where}.name", name, FORMATS["label"].expected)


def _external_name(value: str | None, where: str, context: Context) -> Iterator[Problem]:
    """Check the target host of a Service of type ExternalName."""
    if context.owner.get("type") == "ExternalName" and value:
        yield from _text(value.removesuffix("."), where, "subdomain")


def _cluster_ip(value: str | None, where: str, _: Context) -> Iterator[Problem]:
    """Check that the clusterIP of a Service is an address, "None" or empty."""
    if value not in {None, "", "None"} and not FORMATS["address"].fits(value):
        yield invalid(f"{where}s[0]", value, "an IP address, None or nothing")


def _node_port(value: int | None, where: str, _: Context) -> Iterator[Problem]:
    """Check that a nodePort of a Service is in the range of node ports."""
    if value and value not in _NODE_PORTS:
        what = (
            f"provided port is not in the valid range. The range of valid ports is {_NODE_PORTS[0]}-{_NODE_PORTS[-1]}"
        )
        yield Problem(where=where, what=f"Invalid value: {value}: {what}", expected="a port of the range, or none")


def _service_ports(value: Sequence[Json] | None, where: str, context: Context) -> Iterator[Problem]:
    """Check that a Service's ports have distinct names and numbers, and node ports only for allowed types."""
    ports, seen = value or (), set()
    for index, port in enumerate(ports):
        at, key = f"{where}[{index}]", (port.get("protocol") or "TCP", port.get("port"))
        if not port.get("name") and len(ports) > 1:
            yield required(f"{at}.name", "a name for each of several ports")
        if port.get("nodePort") and context.owner.get("type") not in {"LoadBalancer", "NodePort"}:
            yield forbidden(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'")
        else:
            yield from _node_port(port.get("nodePort"), f"{at}.nodePort", context)
        # Without a target, the target is the port itself.
        if not FORMATS["port"].fits(target := port.get("targetPort") or port.get("port") or 0):
            yield invalid(f"{at}.targetPort", target, FORMATS["port"].expected)
        if key in seen:
            yield Problem(where=at, what=f"Duplicate value: {key[1]}/{key[0]}", expected="a unique port")
        seen.add(key)


def _template(value: Json | None, where: str, context: Context) -> Iterator[Problem]:
    """Check that a Deployment's selector matches its template."""
    selector, metadata = map_of(context.owner, "selector"), map_of(value or {}, "metadata")
    own, at = map_of(metadata, "labels"), where.removesuffix(".template")
    wrong = f"{where}.metadata.labels"
    if not map_of(selector, "matchLabels") and not items_of(selector, "matchExpressions"):
        yield required(f"{at}.selector", "matchLabels, labels of the template")
        if context.owner.get("selector") is None:
            yield invalid(wrong, "", "the labels of the selector")
    elif not _is_selector(selector):
        yield invalid(f"{at}.selector", "", "a label selector")
    elif not written_selector(selector).matches(own):
        what = "Invalid value: `selector` does not match template `labels`"
        yield Problem(where=wrong, what=what, expected="the labels of the selector")
    # A kube-apiserver names these two without "metadata".
    yield from labels(own, f"{where}.labels")
    for key in map_of(metadata, "annotations"):
        if not FORMATS["qualified"].fits(key.lower()):
            yield invalid(f"{where}.annotations", key, "a name like example.com/name")


def _is_selector(selector: Json) -> bool:
    return not list(labels(map_of(selector, "matchLabels"), "")) and all(
        FORMATS["qualified"].fits(expression.get("key") or "")
        and _HAS_VALUES.get(expression.get("operator")) is bool(expression.get("values"))
        for expression in items_of(selector, "matchExpressions")
    )


def _strategy(value: Json | None, where: str, _: Context) -> Iterator[Problem]:
    """Check how a Deployment replaces its pods."""
    strategy = value or {}
    kind, rolling, at = strategy.get("type") or "RollingUpdate", strategy.get("rollingUpdate"), f"{where}.rollingUpdate"
    if kind not in {"Recreate", "RollingUpdate"}:
        yield unsupported(where, kind, ("Recreate", "RollingUpdate"))
    elif kind == "Recreate" and rolling is not None:
        yield forbidden(at, "may not be specified when strategy `type` is 'Recreate'")
    elif kind == "RollingUpdate" and rolling:
        surge, missing = rolling.get("maxSurge", 1), rolling.get("maxUnavailable", 1)
        if not FORMATS["share"].fits(missing):
            yield invalid(f"{at}.maxUnavailable", missing, FORMATS["share"].expected)
        # Up to all pods may be removed; there is no limit for added ones.
        is_text = isinstance(surge, str)
        if not (surge[:-1].isdecimal() and surge.endswith("%") if is_text else surge >= 0):
            yield invalid(f"{at}.maxSurge", surge, FORMATS["share"].expected)
        if surge in {0, "0%"} and missing in {0, "0%"}:
            yield invalid(f"{at}.maxUnavailable", 0, "more than 0 when `maxSurge` is 0")


def _endpoints(value: Sequence[Json] | None, where: str, context: Context) -> Iterator[Problem]:
    """Check that endpoints have addresses of the slice's type."""
    if context.owner.get("addressType") not in {"FQDN", "IPv4", "IPv6"}:
        return
    for index, endpoint in enumerate(value or ()):
        at, addresses = f"{where}[{index}].addresses", items_of(endpoint, "addresses")
        if not addresses:
            yield required(at, "an address")
        for number, address in enumerate(addresses):
            if context.owner["addressType"] != "FQDN" and not FORMATS["address"].fits(address):
                yield invalid(f"{at}[{number}]", address, "an IP address")


def _endpoint_ports(value: Sequence[Json] | None, where: str, _: Context) -> Iterator[Problem]:
    """Check that the ports of an EndpointSlice have different names. At most one may be unnamed."""
    seen: set[Any] = set()
    for index, name in enumerate(port.get("name") or "" for port in value or ()):
        if name in seen:
            yield duplicate(f"{where}[{index}].name", name)
        seen.add(name)


CHECKS: Mapping[str, Callable[[Any, str, Context], Iterator[Problem]]] = MappingProxyType(
    {
        check.__name__.removeprefix("_"): check
        for check in (
            *(_other_names, _own_users, _host_ports, _one_source, _mounts, _resources, _environment),
            *(_downward, _token_path, _other_keys, _config_size, _secret_size, _secret_texts, _secret_type),
            *(_label_name, _external_name, _cluster_ip, _node_port, _service_ports, _template),
            *(_strategy, _endpoints, _endpoint_ports),
        )
    }
)
