"""Validates containers as a real API server: names, environment, ports, probes, resources, mounts, security.

Input: a container whose fields have the right types, its place, and the volumes of its pod; output: a ``Problem`` for each
violation, at the field that a kube-apiserver names. Follows k8s.io/kubernetes, pkg/apis/core/validation/validation.go. Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from serving.home.admission.kuberules.findings import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    PORT_MAX,
    Json,
    at_least,
    chosen,
    duplicate,
    duplicates,
    forbidden,
    invalid,
    is_config_key,
    is_label,
    is_path_below,
    is_port_name,
    is_qualified,
    is_subdomain,
    items_of,
    map_of,
    not_found,
    port_problems,
    required,
    text_problems,
    unsupported,
)
from serving.model.errors import Problem
from serving.model.quantity import parse_quantity

PROTOCOLS = ("TCP", "UDP", "SCTP")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_POLICIES = ("Always", "IfNotPresent", "Never")
_SECCOMP = ("Localhost", "RuntimeDefault", "Unconfined")
_PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
# Of probes, in Kubernetes' order; 0 is the default.
_PROBE_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_ID_MAX = 2**31 - 1
_VARIABLE = re.compile(r"[ -<>-~]+\Z")
_VARIABLE_EXPECTED = "printable ASCII characters without '='"
_HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+\Z")
_FIELDS = {
    *("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"),
    *("spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
}
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]\Z")
_RESOURCE_FIELD = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)\Z")
_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def container_problems(
    one: Json, where: str, volumes: Collection[str], *, is_template: bool = False
) -> Iterator[Problem]:
    """Yield the problems of a container, except for duplicates among containers."""
    image = one.get("image") or ""
    yield from text_problems(one.get("name"), f"{where}.name", DNS_LABEL, is_valid=is_label)
    if not image:
        yield required(f"{where}.image", "the name of an image")
    elif image != image.strip() and not is_template:
        yield invalid(f"{where}.image", image, "a name without blanks around it")
    yield from chosen(one, "imagePullPolicy", where, choices=_POLICIES)
    yield from chosen(one, "terminationMessagePolicy", where, choices=("File", "FallbackToLogsOnError"))
    yield from _port_list_problems(items_of(one, "ports"), f"{where}.ports")
    yield from _environment_problems(one, where)
    yield from _mount_problems(one, where, volumes)
    yield from _resource_problems(map_of(one, "resources"), f"{where}.resources", is_template=is_template)
    yield from security_problems(map_of(one, "securityContext"), f"{where}.securityContext")
    yield from _lifecycle_problems(one, where)


def _lifecycle_problems(one: Json, where: str) -> Iterator[Problem]:
    for hook in ("postStart", "preStop"):
        handler = map_of(one, "lifecycle").get(hook)
        if handler is not None:
            yield from _handler_problems(handler, f"{where}.lifecycle.{hook}")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        given = one.get(probe)
        if given is not None:
            yield from _probe_problems(given, f"{where}.{probe}", probe)


def _probe_problems(probe: Json, where: str, kind: str) -> Iterator[Problem]:
    yield from _handler_problems(probe, where)
    for field in _PROBE_NUMBERS:
        yield from at_least(probe, field, where, least=0)
    grace_s = probe.get("terminationGracePeriodSeconds")
    if grace_s is not None and kind == "readinessProbe":
        yield invalid(f"{where}.terminationGracePeriodSeconds", grace_s, "absent: a readiness probe ends no container")
    elif grace_s is not None and grace_s <= 0:
        yield invalid(f"{where}.terminationGracePeriodSeconds", grace_s, "greater than 0")
    if kind != "readinessProbe" and (probe.get("successThreshold") or 0) > 1:
        yield invalid(f"{where}.successThreshold", probe["successThreshold"], "1")


def _handler_problems(handler: Json, where: str) -> Iterator[Problem]:
    given = [key for key in _HANDLERS if handler.get(key) is not None]
    if not given:
        yield required(where, f"one of {', '.join(_HANDLERS)}")
    for key in given[1:]:
        yield forbidden(f"{where}.{key}", "may not specify more than 1 handler type")
    for key in given[:1]:
        one, at = handler[key], f"{where}.{key}"
        if key == "exec" and not one.get("command"):
            yield required(f"{at}.command", "a command and its arguments")
        if key in {"httpGet", "tcpSocket", "grpc"}:
            yield from port_problems(one.get("port", 0), f"{at}.port")
        if key == "httpGet":
            yield from chosen(one, "scheme", at, choices=("HTTP", "HTTPS"))
            for header in items_of(one, "httpHeaders"):
                if not _HEADER.match(header.get("name") or ""):
                    yield invalid(f"{at}.httpHeaders", header.get("name"), "the name of an HTTP header")


def _port_list_problems(ports: list[Json], where: str) -> Iterator[Problem]:
    for index, port in enumerate(ports):
        at, name = f"{where}[{index}]", port.get("name") or ""
        if name and not is_port_name(name):
            yield invalid(f"{at}.name", name, "at most 15 lower case letters, digits and '-', with a letter among them")
        number = port.get("containerPort") or 0
        if not number:
            yield required(f"{at}.containerPort", f"a port, 1 to {PORT_MAX}")
        elif not 0 < number <= PORT_MAX:
            yield invalid(f"{at}.containerPort", number, f"a port, 1 to {PORT_MAX}")
        host = port.get("hostPort") or 0
        if host and not 0 < host <= PORT_MAX:
            yield invalid(f"{at}.hostPort", host, f"a port, 1 to {PORT_MAX}")
        yield from chosen(port, "protocol", at, choices=PROTOCOLS)
    yield from duplicates([port.get("name") for port in ports], where, ".name")
    seen = set()
    for index, port in enumerate(ports):
        key = (port.get("hostPort"), port.get("protocol") or "TCP", port.get("hostIP") or "")
        if key[0] and key in seen:
            yield duplicate(f"{where}[{index}].hostPort", key[0])
        seen.add(key)


def _environment_problems(one: Json, where: str) -> Iterator[Problem]:
    for index, variable in enumerate(items_of(one, "env")):
        at, name = f"{where}.env[{index}]", variable.get("name") or ""
        if not name:
            yield required(f"{at}.name", "the name of a variable")
        elif not _VARIABLE.match(name):
            yield invalid(f"{at}.name", name, _VARIABLE_EXPECTED)
        if variable.get("valueFrom") is not None:
            yield from _source_problems(variable, f"{at}.valueFrom")
    for index, source in enumerate(items_of(one, "envFrom")):
        at = f"{where}.envFrom[{index}]"
        if source.get("prefix") and not _VARIABLE.match(source["prefix"]):
            yield invalid(f"{at}.prefix", source["prefix"], _VARIABLE_EXPECTED)
        given = [key for key in ("configMapRef", "secretRef") if source.get(key) is not None]
        if len(given) != 1:
            yield invalid(f"{where}.envFrom", "", "one of configMapRef and secretRef in each")
            continue
        name = source[given[0]].get("name")
        yield from text_problems(name, f"{at}.{given[0]}.name", DNS_SUBDOMAIN, is_valid=is_subdomain)


def _source_problems(variable: Json, where: str) -> Iterator[Problem]:
    source = variable["valueFrom"]
    given = [key for key in _SOURCES if source.get(key) is not None]
    if len(given) != 1 or variable.get("value"):
        yield invalid(where, "", f"one of {', '.join(_SOURCES)}, without a value beside it")
    for key in given:
        one, at = source[key], f"{where}.{key}"
        if key == "fieldRef":
            yield from field_path_problems(one, at, _FIELDS - {"metadata.labels", "metadata.annotations"})
        elif key == "resourceFieldRef":
            if not _RESOURCE_FIELD.match(one.get("resource") or ""):
                yield _amiss(one, "resource", at, expected="a resource such as limits.cpu")
        elif key in {"configMapKeyRef", "secretKeyRef"}:
            if not one.get("name"):
                yield required(f"{at}.name", DNS_SUBDOMAIN)
            if not is_config_key(one.get("key") or ""):
                yield _amiss(one, "key", at, expected="a key of its data: letters, digits, '-', '_' and '.'")


def _amiss(one: Json, field: str, where: str, *, expected: str) -> Problem:
    """The problem of a field that is empty or has a wrong value."""
    value = one.get(field)
    return invalid(f"{where}.{field}", value, expected) if value else required(f"{where}.{field}", expected)


def field_path_problems(one: Json, where: str, fields: Collection[str] = _FIELDS) -> Iterator[Problem]:
    """Yield the problems of a field reference."""
    path, version = one.get("fieldPath") or "", one.get("apiVersion") or "v1"
    if not path:
        yield required(f"{where}.fieldPath", "a field such as metadata.name")
    elif version != "v1" or (path.partition(".")[0] not in {"metadata", "spec", "status"}):
        yield invalid(f"{where}.fieldPath", path, "a field such as metadata.name, of version v1")
    elif path not in fields and not _KEYED_FIELD.match(path):
        known = path in _FIELDS
        what = (
            unsupported(f"{where}.fieldPath", path, sorted(fields))
            if known
            else invalid(f"{where}.fieldPath", path, "a field such as metadata.name")
        )
        yield what


def _mount_problems(one: Json, where: str, volumes: Collection[str]) -> Iterator[Problem]:
    mounts = items_of(one, "volumeMounts")
    is_privileged = bool(map_of(one, "securityContext").get("privileged"))
    seen: set[object] = set()
    for index, mount in enumerate(mounts):
        at, name, path = f"{where}.volumeMounts[{index}]", mount.get("name") or "", mount.get("mountPath")
        if not name:
            yield required(f"{at}.name", "the name of a volume")
        if name not in volumes:
            yield not_found(f"{at}.name", name, "the name of a volume")
        if not path or path in seen:
            yield _amiss(mount, "mountPath", at, expected="a path of its own")
        seen.add(path)
        yield from _mount_option_problems(mount, at, is_privileged=is_privileged)
    for index, device in enumerate(items_of(one, "volumeDevices")):
        yield not_found(f"{where}.volumeDevices[{index}].name", device.get("name"), "a claim for a block device")


def _mount_option_problems(mount: Json, where: str, *, is_privileged: bool) -> Iterator[Problem]:
    # As a kube-apiserver, which names no index here.
    at_all = where.rpartition("[")[0]
    for field in ("subPath", "subPathExpr"):
        if mount.get(field) and not is_path_below(mount[field]):
            yield invalid(f"{at_all}.{field}", mount[field], "a relative path without '..'")
    if mount.get("subPath") and mount.get("subPathExpr"):
        yield invalid(f"{where}.subPathExpr", mount["subPathExpr"], "absent beside subPath")
    yield from chosen(mount, "mountPropagation", at_all, choices=_PROPAGATIONS)
    if mount.get("mountPropagation") == "Bidirectional" and not is_privileged:
        yield forbidden(f"{at_all}.mountPropagation", "Bidirectional is for privileged containers only")
    yield from chosen(mount, "recursiveReadOnly", at_all, choices=("Disabled", "Enabled", "IfPossible"))


def _resource_problems(resources: Json, where: str, *, is_template: bool) -> Iterator[Problem]:
    limits = map_of(resources, "limits")
    # Of a pod, a kube-apiserver takes limits for missing requests before it looks.
    requests = {**({} if is_template else limits), **map_of(resources, "requests")}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _amount_problems(name, amount, f"{where}.{field}[{name}]")
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None and "/" in name:
            yield required(f"{where}.limits", f"a limit of {name}, which cannot be overcommitted")
        elif limit is not None and parse_quantity(str(amount)) > parse_quantity(str(limit)):
            yield invalid(f"{where}.requests", str(amount), f"less than or equal to {name} limit of {limit}")


def _amount_problems(name: str, amount: object, where: str) -> Iterator[Problem]:
    if not is_qualified(name):
        yield invalid(where, name, "the name of a resource")
    elif "/" not in name and name not in _RESOURCES and not name.startswith("hugepages-"):
        yield invalid(where, name, f"a standard resource: {', '.join(_RESOURCES)}, or a name with a domain")
    if parse_quantity(str(amount)) < 0:
        yield invalid(where, amount, "greater than or equal to 0")
    elif "/" in name and parse_quantity(str(amount)).denominator != 1:
        yield invalid(where, amount, "an integer")


def security_problems(context: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield the problems of a container's or pod's security context."""
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        number = context.get(field)
        if number is not None and not 0 <= number <= _ID_MAX:
            yield invalid(f"{where}.{field}", number, f"0 to {_ID_MAX}")
    profile = map_of(context, "seccompProfile")
    at = f"{where}.seccompProfile"
    if profile and profile.get("type") not in _SECCOMP:
        yield unsupported(f"{at}.type", profile.get("type"), _SECCOMP)
    elif profile and profile["type"] == "Localhost" and not profile.get("localhostProfile"):
        yield required(f"{at}.localhostProfile", "the file of a profile")
    elif profile and profile["type"] != "Localhost" and profile.get("localhostProfile"):
        yield invalid(f"{at}.localhostProfile", profile["localhostProfile"], "absent without the type Localhost")
    if context.get("procMount") and context["procMount"] not in {"Default", "Unmasked"}:
        yield unsupported(f"{where}.procMount", context["procMount"], ("Default", "Unmasked"))
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            yield invalid(where, "", "without allowPrivilegeEscalation false where it is privileged")
        if "CAP_SYS_ADMIN" in items_of(map_of(context, "capabilities"), "add"):
            yield invalid(where, "", "without allowPrivilegeEscalation false where it adds CAP_SYS_ADMIN")
