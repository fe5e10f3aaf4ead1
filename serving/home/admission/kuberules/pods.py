"""Validates pod specs and Deployment templates as a real API server. Pure.

Input: a spec whose fields have the right types, and its place; output: a ``Problem`` for each violation, at the field that a
kube-apiserver names. Follows k8s.io/kubernetes, pkg/apis/core/validation/validation.go.
"""

import re
from collections.abc import Iterator, Sequence

from serving.home.admission.kuberules.containers import container_problems, security_problems
from serving.home.admission.kuberules.findings import (
    DNS_LABEL,
    Json,
    at_least,
    chosen,
    duplicate,
    duplicates,
    expression_problems,
    forbidden,
    invalid,
    is_address,
    is_label,
    is_label_value,
    is_qualified,
    is_subdomain,
    items_of,
    label_problems,
    map_of,
    required,
    text_problems,
    unsupported,
)
from serving.home.admission.kuberules.volumes import volume_problems
from serving.model.errors import Problem

_RESTARTS = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_NAMESERVERS_MAX = 3
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_WEIGHT_MAX = 100
_SYSCTL = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*\Z")
# Of a container that ends before the others begin.
_NOT_OF_INIT = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")


def spec_problems(spec: Json, where: str, *, is_template: bool = False) -> Iterator[Problem]:
    """Yield the problems of a pod's spec. A Deployment's template has to restart always."""
    containers, volumes = items_of(spec, "containers"), items_of(spec, "volumes")
    yield from volume_problems(volumes, f"{where}.volumes")
    if not containers:
        yield required(f"{where}.containers", "a list of containers")
    names = {volume.get("name") for volume in volumes}
    for index, one in enumerate(containers):
        yield from container_problems(one, f"{where}.containers[{index}]", names, is_template=is_template)
    yield from duplicates([one.get("name") for one in containers], f"{where}.containers", ".name")
    yield from _init_problems(spec, where, is_template=is_template)
    if items_of(spec, "ephemeralContainers"):
        yield forbidden(f"{where}.ephemeralContainers", "cannot be set on create")
    yield from chosen(spec, "preemptionPolicy", where, choices=("Never", "PreemptLowerPriority"))
    yield from chosen(spec, "restartPolicy", where, choices=_RESTARTS[:1] if is_template else _RESTARTS)
    yield from _end_problems(spec, where, is_template=is_template)
    yield from _dns_problems(spec, where)
    yield from _name_problems(spec, where)
    yield from label_problems(map_of(spec, "nodeSelector"), f"{where}.nodeSelector")
    yield from _toleration_problems(items_of(spec, "tolerations"), f"{where}.tolerations")
    yield from _spread_problems(items_of(spec, "topologySpreadConstraints"), f"{where}.topologySpreadConstraints")
    yield from _affinity_problems(map_of(spec, "affinity"), f"{where}.affinity")
    yield from _security_problems(map_of(spec, "securityContext"), f"{where}.securityContext")


def _init_problems(spec: Json, where: str, *, is_template: bool) -> Iterator[Problem]:
    """Yield the problems of init containers."""
    volumes = {volume.get("name") for volume in items_of(spec, "volumes")}
    taken = {one.get("name") for one in items_of(spec, "containers")} - {"", None}
    for index, one in enumerate(items_of(spec, "initContainers")):
        at, name = f"{where}.initContainers[{index}]", one.get("name")
        yield from container_problems(one, at, volumes, is_template=is_template)
        if name in taken:
            yield duplicate(f"{at}.name", name)
        taken.add(name)
        if one.get("restartPolicy"):
            # A real API server takes Always: such a container goes on running, which no pod here can have.
            yield forbidden(f"{at}.restartPolicy", "an init container ends before the others begin")
        for field in _NOT_OF_INIT:
            if one.get(field) is not None:
                yield forbidden(f"{at}.{field}", "may not be set for init containers without restartPolicy=Always")


def _end_problems(spec: Json, where: str, *, is_template: bool) -> Iterator[Problem]:
    deadline_s = spec.get("activeDeadlineSeconds")
    if deadline_s is not None and is_template:
        yield forbidden(f"{where}.activeDeadlineSeconds", "activeDeadlineSeconds in a Deployment is not Supported")
    elif deadline_s is not None:
        yield from at_least(spec, "activeDeadlineSeconds", where, least=1)


def _dns_problems(spec: Json, where: str) -> Iterator[Problem]:
    yield from chosen(spec, "dnsPolicy", where, choices=_DNS)
    config, at = map_of(spec, "dnsConfig"), f"{where}.dnsConfig"
    servers = items_of(config, "nameservers")
    if spec.get("dnsPolicy") == "None" and not servers:
        yield required(at if not config else f"{at}.nameservers", "a nameserver, for the dnsPolicy None")
    if len(servers) > _NAMESERVERS_MAX:
        yield invalid(f"{at}.nameservers", len(servers), f"at most {_NAMESERVERS_MAX}")
    for index, server in enumerate(servers):
        if not is_address(server):
            yield invalid(f"{at}.nameservers[{index}]", server, "an IP address")
    for index, domain in enumerate(items_of(config, "searches")):
        if not is_subdomain(domain.removesuffix(".").replace("_", "a")):
            yield invalid(f"{at}.searches[{index}]", domain, "a domain")
    for index, option in enumerate(items_of(config, "options")):
        if not option.get("name"):
            yield required(f"{at}.options[{index}]", "a name")


def _name_problems(spec: Json, where: str) -> Iterator[Problem]:
    for field in ("hostname", "subdomain"):
        if spec.get(field) and not is_label(spec[field]):
            yield invalid(f"{where}.{field}", spec[field], DNS_LABEL)
    account = spec.get("serviceAccountName")
    if account and not is_subdomain(account):
        yield invalid(f"{where}.serviceAccountName", account, "the name of a ServiceAccount")
    yield from _alias_problems(items_of(spec, "hostAliases"), f"{where}.hostAliases")
    for field, key in (("readinessGates", "conditionType"), ("schedulingGates", "name")):
        for index, gate in enumerate(items_of(spec, field)):
            if not is_qualified(gate.get(key) or ""):
                # A kube-apiserver names the key of one only.
                at = f"{where}.{field}[{index}]" + (f".{key}" if field == "readinessGates" else "")
                yield invalid(at, gate.get(key), "a qualified name")
    system = map_of(spec, "os").get("name")
    if system and system not in {"linux", "windows"}:
        yield unsupported(f"{where}.os", system, ("linux", "windows"))


def _alias_problems(aliases: Sequence[Json], where: str) -> Iterator[Problem]:
    for index, alias in enumerate(aliases):
        at = f"{where}[{index}]"
        if not is_address(alias.get("ip") or ""):
            yield invalid(f"{at}.ip", alias.get("ip") or "", "an IP address")
        for number, name in enumerate(items_of(alias, "hostnames")):
            if not is_subdomain(name):
                yield invalid(f"{at}.hostnames[{number}]", name, "the name of a host")


def _toleration_problems(tolerations: Sequence[Json], where: str) -> Iterator[Problem]:
    for index, one in enumerate(tolerations):
        at, key, operator = f"{where}[{index}]", one.get("key") or "", one.get("operator") or ""
        if key and not is_qualified(key):
            yield invalid(f"{at}.key", key, "the key of a taint")
        if not key and operator != "Exists":
            yield invalid(f"{at}.operator", operator, "Exists where there is no key")
        if one.get("tolerationSeconds") is not None and one.get("effect") != "NoExecute":
            yield invalid(f"{at}.effect", one.get("effect"), "NoExecute beside tolerationSeconds")
        if operator == "Exists" and one.get("value"):
            yield invalid(f"{at}.operator", operator, "Equal beside a value")
        if operator in {"", "Equal"} and key and not is_label_value(one.get("value") or ""):
            yield invalid(f"{at}.operator", one["value"], "Equal with the value of a label")
        if operator not in {"", "Equal", "Exists"}:
            yield unsupported(f"{at}.operator", operator, ("Equal", "Exists"))
        yield from chosen(one, "effect", at, choices=_EFFECTS)


def _spread_problems(constraints: Sequence[Json], where: str) -> Iterator[Problem]:
    for index, one in enumerate(constraints):
        at = f"{where}[{index}]"
        if (one.get("maxSkew") or 0) <= 0:
            yield invalid(f"{at}.maxSkew", one.get("maxSkew"), "greater than 0")
        yield from _topology_problems(one, at)
        actions = ("DoNotSchedule", "ScheduleAnyway")
        if one.get("whenUnsatisfiable") not in actions:
            yield unsupported(f"{at}.whenUnsatisfiable", one.get("whenUnsatisfiable"), actions)
        yield from at_least(one, "minDomains", at, least=1)


def _affinity_problems(affinity: Json, where: str) -> Iterator[Problem]:
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        rules, at = map_of(affinity, kind), f"{where}.{kind}"
        must, may = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
        for index, one in enumerate(items_of(rules, may)):
            weight = one.get("weight") or 0
            if not 0 < weight <= _WEIGHT_MAX:
                yield invalid(f"{at}.{may}[{index}].weight", weight, f"1 to {_WEIGHT_MAX}")
            if kind == "nodeAffinity":
                yield from _term_problems(map_of(one, "preference"), f"{at}.{may}[{index}].preference")
            else:
                yield from _topology_problems(map_of(one, "podAffinityTerm"), f"{at}.{may}[{index}].podAffinityTerm")
        if kind != "nodeAffinity":
            for index, term in enumerate(items_of(rules, must)):
                yield from _topology_problems(term, f"{at}.{must}[{index}]")
        elif rules.get(must) is not None:
            terms = items_of(rules[must], "nodeSelectorTerms")
            if not terms:
                yield required(f"{at}.{must}.nodeSelectorTerms", "at least one term")
            for index, term in enumerate(terms):
                yield from _term_problems(term, f"{at}.{must}.nodeSelectorTerms[{index}]")


def _topology_problems(term: Json, where: str) -> Iterator[Problem]:
    expected = "the key of a node's label"
    yield from text_problems(term.get("topologyKey"), f"{where}.topologyKey", expected, is_valid=is_qualified)


def _term_problems(term: Json, where: str) -> Iterator[Problem]:
    expressions = items_of(term, "matchExpressions")
    yield from expression_problems(expressions, f"{where}.matchExpressions", is_of_node=True)


def _security_problems(context: Json, where: str) -> Iterator[Problem]:
    yield from security_problems(context, where)
    for index, group in enumerate(items_of(context, "supplementalGroups")):
        if group < 0:
            yield invalid(f"{where}.supplementalGroups[{index}]", group, "0 or more")
    yield from chosen(context, "fsGroupChangePolicy", where, choices=("Always", "OnRootMismatch"))
    for index, one in enumerate(items_of(context, "sysctls")):
        if not _SYSCTL.match(one.get("name") or ""):
            yield invalid(f"{where}.sysctls[{index}].name", one.get("name"), "the name of a sysctl")
