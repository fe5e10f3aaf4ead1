"""Converts KEDA's HTTP resources: an HTTPScaledObject or InterceptorRoute becomes the spec of a ScaledWorkload.

Input: a route as its API has it, and the ScaledObjects of its namespace. Output: a ``Conversion`` with the spec,
annotations for scaling keys that the spec lacks, and a sentence for each field without effect. ``READ_FIELDS`` are the
fields with an effect; any other field is named in a sentence. The controller and ``serving convert`` use this module.
Pure.

Follows kedacore/http-add-on 0.16 and kedacore/keda 2: of two metrics the larger number of pods counts, and the target
has no utilisation factor.
"""

import math
import mimetypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.knative import LOAD_ANNOTATION, RETENTION_ANNOTATION, UTILIZATION_ANNOTATION
from serving.core.model.objects import Object, annotations_of, name_of, namespace_of, nested
from serving.core.model.quantity import format_duration_s, parse_duration_s
from serving.core.model.scaledworkload import (
    REJECT,
    ColdStart,
    HeaderMatch,
    PlaceholderResponse,
    RoutingRule,
    ScaledWorkloadSpec,
    Schedule,
    WorkloadScaling,
    WorkloadService,
    WorkloadTarget,
)
from serving.core.model.unread import Fields, unread
from serving.core.settings.autoscaler import AutoscalerSettings

HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, SCALED_OBJECT = "HTTPScaledObject", "InterceptorRoute", "ScaledObject"
# KEDA's defaults.
_MAX_COUNT, _TARGET, _FALLBACK_AFTER_S = 100, 100, 30
_WINDOW_MIN_S, _WINDOW_MAX_S, _RETENTION_MAX_S = 6.0, 3600.0, 3600.0
PAGE_LABEL = "http.keda.sh/response-body=true"
"""The label of ConfigMaps with bodies of responses, as a selector."""

_GRANULARITY = "1s"
_INDEX, _SERVER_ERROR = "index.html", 500
# Required fields of a cron trigger.
_CRON_FIELDS = ("timezone", "start", "end", "desiredReplicas")
_REFERENCES = {HTTP_SCALED_OBJECT: "httpScaledObject", INTERCEPTOR_ROUTE: "interceptorRoute"}
_HEAD: Fields = dict.fromkeys(("apiVersion", "kind", "metadata", "status"))
_RATE = dict.fromkeys(("granularity", "targetValue", "window"))
_METRIC: Fields = {"concurrency": {"targetValue": None}, "requestRate": _RATE}
_PORT = ("service", "port", "portName")
READ_FIELDS: Mapping[str, Fields] = {
    HTTP_SCALED_OBJECT: {
        **_HEAD,
        "spec": {
            "headers": None,
            "hosts": None,
            "pathPrefixes": None,
            "replicas": dict.fromkeys(("max", "min")),
            "scaleTargetRef": dict.fromkeys(("apiVersion", "kind", "name", *_PORT)),
            "coldStartTimeoutFailoverRef": dict.fromkeys((*_PORT, "timeoutSeconds")),
            "initialCooldownPeriod": None,
            "scaledownPeriod": None,
            "scalingMetric": _METRIC,
            "targetPendingRequests": None,
            "timeouts": dict.fromkeys(("conditionWait", "responseHeader")),
        },
    },
    INTERCEPTOR_ROUTE: {
        **_HEAD,
        "spec": {
            "coldStart": {
                "fallback": {"service": dict.fromkeys(("name", "port", "portName"))},
                "maxPendingRequests": None,
                "overflow": None,
                "placeholder": {
                    "response": {
                        **dict.fromkeys(("body", "headers", "statusCode")),
                        "bodyFromConfigMap": dict.fromkeys(("key", "name")),
                    }
                },
            },
            "rules": dict.fromkeys(("headers", "hosts", "paths")),
            "scalingMetric": _METRIC,
            "target": dict.fromkeys(_PORT),
            "timeouts": dict.fromkeys(("readiness", "request", "responseHeader")),
        },
    },
    SCALED_OBJECT: {
        **_HEAD,
        "spec": {
            "cooldownPeriod": None,
            "initialCooldownPeriod": None,
            "maxReplicaCount": None,
            "minReplicaCount": None,
            "scaleTargetRef": dict.fromkeys(("apiVersion", "kind", "name")),
            "triggers": dict.fromkeys(("metadata", "type")),
        },
    },
}
"""The supported fields, by kind."""

# Why a known field has no effect.
_REASONS = {
    "spec.advanced": "`serving release` restores the replicas, and no HorizontalPodAutoscaler is made",
    "spec.fallback": "the count stays while there is no data",
    "spec.pollingInterval": "requests are counted each second and decided on every two",
    "spec.staticRoutes": "every request goes to the workload",
}


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """A KEDA route as a ScaledWorkload. ``notes`` list parts without effect; ``problems`` are why ``spec`` is None."""

    kind: str
    name: str
    namespace: str
    spec: ScaledWorkloadSpec | None = None
    annotations: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def workload(self) -> Object:
        """The ScaledWorkload, with the route's name."""
        assert self.spec is not None, "the route has a problem"
        workload = self.spec.to_object(name=self.name, namespace=self.namespace)
        metadata = {key: value for key, value in workload["metadata"].items() if value}
        annotations = {"annotations": dict(self.annotations)} if self.annotations else {}
        return {**workload, "metadata": {**metadata, **annotations}}


def convert_route(route: Object, scaled_objects: Iterable[Object], *, pages: Iterable[Object] = ()) -> Conversion:
    """Convert an HTTPScaledObject or InterceptorRoute, with the ScaledObjects of its namespace.

    ``pages`` are the namespace's ConfigMaps with response bodies.
    """
    kind = str(route.get("kind"))
    conversion = Conversion(kind=kind, name=name_of(route), namespace=namespace_of(route))
    scaled = scaled_object_of(route, scaled_objects)
    notes = [*_notes(route, kind), *(_notes(scaled, SCALED_OBJECT, prefix="ScaledObject: ") if scaled else ())]
    try:
        if kind == INTERCEPTOR_ROUTE and scaled is None:
            expected = f"a ScaledObject with an external-push trigger whose interceptorRoute is {conversion.name}"
            raise SettingsError.of("spec", "it names no workload", expected)
        spec, annotations = _spec(route, scaled or {}, notes)
        response = nested(route, "spec", "coldStart", "placeholder", "response")
        if response is not None:
            cold_start = msgspec.structs.replace(spec.cold_start, placeholder=_placeholder(response, pages, notes))
            spec = msgspec.structs.replace(spec, cold_start=cold_start)
        problems = tuple(spec.problems())
    except SettingsError as error:
        return msgspec.structs.replace(conversion, notes=tuple(notes), problems=error.problems)
    return msgspec.structs.replace(
        conversion,
        spec=None if problems else spec,
        annotations=annotations,
        notes=tuple(notes),
        problems=problems,
    )


def scaled_object_of(route: Object, scaled_objects: Iterable[Object]) -> Object | None:
    """The ScaledObject with a trigger that names the route; None if there is none."""
    key, name = _REFERENCES[str(route.get("kind"))], name_of(route)
    for scaled in scaled_objects:
        if any(nested(trigger, "metadata", key) == name for trigger in nested(scaled, "spec", "triggers") or ()):
            return scaled
    return None


def names_route(scaled: Object) -> bool:
    """Whether a ScaledObject has a trigger that names a route. Every other one scales nothing here."""
    triggers = nested(scaled, "spec", "triggers") or ()
    return any(nested(trigger, "metadata", key) for trigger in triggers for key in _REFERENCES.values())


def _notes(document: Object, kind: str, prefix: str = "") -> Iterator[str]:
    for field in sorted(set(unread(document, READ_FIELDS[kind]))):
        reason = next((text for known, text in _REASONS.items() if f"{field}.".startswith(f"{known}.")), "")
        yield f"{prefix}{field} has no effect{': ' if reason else ''}{reason}"
    for key in sorted(annotations_of(document)):
        if "keda.sh" in key.partition("/")[0]:
            yield f"{prefix}annotation {key} has no effect"
    for trigger in nested(document, "spec", "triggers") or ():
        if trigger.get("type") not in {"cron", "external-push"}:
            others = "a ScalingPolicy has triggers on occupancy, cpu and memory"
            yield f"{prefix}trigger {trigger.get('type')} has no effect: {others}"


def _spec(route: Object, scaled: Object, notes: list[str]) -> tuple[ScaledWorkloadSpec, dict[str, str]]:
    is_old = route.get("kind") == HTTP_SCALED_OBJECT
    spec: Mapping[str, Any] = route.get("spec") or {}
    backend = (spec.get("scaleTargetRef") if is_old else spec.get("target")) or {}
    service = str(backend.get("service", ""))
    target = (nested(scaled, "spec", "scaleTargetRef") or {}) | (backend if is_old else {})
    scaling, annotations = _metric(spec, is_old=is_old, notes=notes)
    cooldown_s = _first(spec.get("scaledownPeriod"), nested(scaled, "spec", "cooldownPeriod"))
    if cooldown_s is not None and cooldown_s < 0:
        raise SettingsError.of("spec.scaledownPeriod or cooldownPeriod", str(cooldown_s), "0 or more seconds")
    if cooldown_s is not None:
        annotations[RETENTION_ANNOTATION] = _retention(float(cooldown_s), scaling.window, notes)
    notes.extend(_initial_notes(spec, scaled, scaling.window))
    max_count = _first(nested(spec, "replicas", "max"), nested(scaled, "spec", "maxReplicaCount"), _MAX_COUNT)
    timeouts = spec.get("timeouts") or {}
    rules = _old_rules(spec, notes) if is_old else _rules(spec.get("rules") or (), notes)
    workload = ScaledWorkloadSpec(
        target=WorkloadTarget(
            name=str(target.get("name") or service),
            kind=str(target.get("kind") or "Deployment"),
            api_version=str(target.get("apiVersion") or "apps/v1"),
        ),
        service=WorkloadService(name=service, port=_first(backend.get("port"), backend.get("portName"))),
        hosts=rules[0].hosts if rules else (),
        paths=rules[0].paths if rules else (),
        headers=rules[0].headers if rules else (),
        rules=tuple(rules[1:]),
        scaling=msgspec.structs.replace(
            scaling,
            min_count=_first(nested(spec, "replicas", "min"), nested(scaled, "spec", "minReplicaCount"), 0),
            max_count=max_count,
            schedules=tuple(_schedules(scaled)),
        ),
        max_pending_requests=nested(spec, "coldStart", "maxPendingRequests"),
        wait_timeout_seconds=_wait_s(spec, is_old=is_old),
        timeout_seconds=_whole_seconds("request", timeouts),
        response_start_timeout_seconds=_whole_seconds("responseHeader", timeouts),
        cold_start=_cold_start(spec),
    )
    return workload, annotations


def _wait_s(spec: Mapping[str, Any], *, is_old: bool) -> int | None:
    """The longest wait for a pod, in seconds; None for no limit. KEDA always limits the wait if there is a fallback.

    ``is_old``: the route is an HTTPScaledObject, whose timeouts have other names.
    """
    wait_s = _whole_seconds("conditionWait" if is_old else "readiness", spec.get("timeouts") or {})
    failover = spec.get("coldStartTimeoutFailoverRef")
    if failover is not None:
        return int(failover.get("timeoutSeconds") or wait_s or _FALLBACK_AFTER_S)
    has_fallback = nested(spec, "coldStart", "fallback", "service") is not None
    return wait_s or (_FALLBACK_AFTER_S if has_fallback else None)


def _placeholder(response: Mapping[str, Any], pages: Iterable[Object], notes: list[str]) -> PlaceholderResponse:
    """The placeholder response. As in KEDA, its status is 500 if the ConfigMap or key of its body is missing."""
    status = _first(response.get("statusCode"), PlaceholderResponse().status_code)
    headers, reference = response.get("headers") or {}, response.get("bodyFromConfigMap")
    if reference is None:
        return PlaceholderResponse(status_code=status, headers=headers, body=response.get("body") or "")
    where, key = "spec.coldStart.placeholder.response.bodyFromConfigMap", reference.get("key") or _INDEX
    if not reference.get("key"):
        notes.append(f"{where} has no key: every path gets {_INDEX}")
    page = next((page for page in pages if name_of(page) == reference["name"]), {})
    body = (page.get("data") or {}).get(key)
    if body is None:
        notes.append(f"{where}: no ConfigMap {reference['name']} with the label {PAGE_LABEL} has the key {key}")
        return PlaceholderResponse(status_code=_SERVER_ERROR)
    content_type = mimetypes.guess_type(key)[0]
    if content_type is not None and not any(name.lower() == "content-type" for name in headers):
        headers = {**headers, "Content-Type": content_type}
    return PlaceholderResponse(status_code=status, headers=headers, body=str(body))


def _cold_start(spec: Mapping[str, Any]) -> ColdStart:
    failover, fallback = spec.get("coldStartTimeoutFailoverRef"), nested(spec, "coldStart", "fallback", "service")
    if failover is not None:
        fallback = {**failover, "name": failover["service"]}
    return ColdStart(
        fallback=None
        if fallback is None
        else WorkloadService(name=fallback["name"], port=_first(fallback.get("port"), fallback.get("portName"))),
        overflow=_first(nested(spec, "coldStart", "overflow"), REJECT),
    )


def _first(*values: Any) -> Any:  # noqa: ANN401 - JSON
    return next((value for value in values if value is not None), None)


def _metric(spec: Mapping[str, Any], *, is_old: bool, notes: list[str]) -> tuple[WorkloadScaling, dict[str, str]]:
    """The metric with its target and window, and annotations for scaling; the window is None if the route sets none.

    Raises ``SettingsError`` if two metrics contradict each other.
    """
    metric: Mapping[str, Any] = spec.get("scalingMetric") or {}
    rate, concurrency = metric.get("requestRate"), metric.get("concurrency")
    annotations = {UTILIZATION_ANNOTATION: "100"}
    if rate is not None and rate.get("granularity") not in (None, _GRANULARITY):
        notes.append("spec.scalingMetric.requestRate.granularity has no effect: requests are counted each second")
    if rate is not None and concurrency is not None and is_old:
        raise SettingsError.of("spec.scalingMetric", "concurrency and requestRate", "one of them")
    window = None if rate is None or not rate.get("window") else _window(str(rate["window"]), notes)
    if rate is not None and concurrency is not None:
        annotations[LOAD_ANNOTATION] = f"concurrency={_target(concurrency)}, rps={_target(rate)}"
        return WorkloadScaling(window=window), annotations
    if rate is not None:
        return WorkloadScaling(metric="rps", target=_target(rate), window=window), annotations
    pending = spec.get("targetPendingRequests")
    target = _target({"targetValue": pending} if concurrency is None else concurrency)
    return WorkloadScaling(metric="concurrency", target=target), annotations


def _target(metric: Mapping[str, Any]) -> int:
    return int(_first(metric.get("targetValue"), _TARGET))


def _window(text: str, notes: list[str]) -> str:
    window_s = _seconds("spec.scalingMetric.requestRate.window", text)
    bounded_s = min(max(float(math.ceil(window_s)), _WINDOW_MIN_S), _WINDOW_MAX_S)
    if bounded_s != window_s:
        nearest = format_duration_s(bounded_s)
        notes.append(
            f"spec.scalingMetric.requestRate.window is {nearest} instead of {text}: whole seconds from 6s to 1h"
        )
    return format_duration_s(bounded_s)


def _window_s(window: str | None) -> float:
    return AutoscalerSettings().stable_window_s if window is None else parse_duration_s(window)


def _initial_notes(spec: Mapping[str, Any], scaled: Object, window: str | None) -> Iterator[str]:
    """A note for each initial cooldown longer than the window, because such a cooldown has no effect."""
    for prefix, fields in (("", spec), ("ScaledObject: ", scaled.get("spec") or {})):
        if (fields.get("initialCooldownPeriod") or 0) > _window_s(window):
            reason = f"a new workload keeps its scale for its window, {format_duration_s(_window_s(window))}"
            yield f"{prefix}spec.initialCooldownPeriod has no effect: {reason}"


def _retention(cooldown_s: float, window: str | None, notes: list[str]) -> str:
    """How long the last pod stays after the window without requests, as text such as "4m"; at most one hour.

    Window and retention together replace KEDA's cooldown. A note is added to ``notes`` if they cannot equal it.
    """
    window_s = _window_s(window)
    retention_s = min(max(0.0, cooldown_s - window_s), _RETENTION_MAX_S)
    if retention_s + window_s != cooldown_s:
        goes = f"the last pod goes {format_duration_s(retention_s + window_s)} after the last request"
        notes.append(f"{goes} instead of {format_duration_s(cooldown_s)}: the window, and at most 1h more")
    return format_duration_s(retention_s)


def _whole_seconds(field: str, timeouts: Mapping[str, Any]) -> int | None:
    """A timeout in whole seconds, rounded up; None if it is missing or 0s, which disables it in KEDA."""
    text = timeouts.get(field)
    return math.ceil(_seconds(f"spec.timeouts.{field}", text)) or None if text else None


def _seconds(where: str, text: str) -> float:
    try:
        return parse_duration_s(text)
    except InvalidValue as error:
        raise SettingsError.of(where, repr(text), error.expected) from error


def _old_rules(spec: Mapping[str, Any], notes: list[str]) -> list[RoutingRule]:
    rule = {
        "hosts": spec.get("hosts"),
        "paths": [{"value": prefix} for prefix in spec.get("pathPrefixes") or ()],
        "headers": spec.get("headers"),
    }
    return _rules([rule], notes)


def _rules(written: Sequence[Mapping[str, Any]], notes: list[str]) -> list[RoutingRule]:
    """The routing rules. A rule for all hosts is left out, because other workloads share the port."""
    rules = []
    for rule in written:
        hosts = [str(host).lower() for host in rule.get("hosts") or ()]
        exact = tuple(host for host in hosts if host not in {"*", ""})
        if not exact:
            notes.append(
                "a rule for any host has no effect: name hosts, or call the workload by its cluster-local name"
            )
            continue
        if len(exact) < len(hosts):
            notes.append("host * has no effect: name hosts")
        prefixes = [path.get("value") or "" for path in rule.get("paths") or ()]
        headers = [HeaderMatch(name=header["name"], value=header.get("value")) for header in rule.get("headers") or ()]
        rules.append(RoutingRule.below(prefixes, hosts=exact, headers=tuple(headers)))
    return rules


def _schedules(scaled: Object) -> Iterator[Schedule]:
    """The cron triggers. Raises ``SettingsError`` if one is incomplete."""
    for trigger in nested(scaled, "spec", "triggers") or ():
        if trigger.get("type") != "cron":
            continue
        cron: Mapping[str, Any] = trigger.get("metadata") or {}
        missing = [key for key in _CRON_FIELDS if cron.get(key) in (None, "")]
        if missing:
            raise SettingsError.of("a cron trigger", f"no {', '.join(missing)}", ", ".join(_CRON_FIELDS))
        count = str(cron["desiredReplicas"])
        if not count.isdecimal() or int(count) < 1:
            raise SettingsError.of("desiredReplicas of a cron trigger", repr(count), "a whole number from 1 on")
        yield Schedule(
            start=str(cron["start"]), end=str(cron["end"]), min_count=int(count), time_zone=str(cron["timezone"])
        )
