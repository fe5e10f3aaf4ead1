"""KEDA's routes as ScaledWorkloads: fields that act, fields without effect, and problems."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from serving.controller.keda.conversion import Conversion, convert_route, names_route
from serving.core.model.knative import LOAD_ANNOTATION
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadService
from serving.home.admission.admission import admit
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, KEDA_SCALED_OBJECT, SCALED_WORKLOAD, Kind
from tests.unit.config.crdfields import fields_of_schema
from tests.unit.controller.builders import merged

OLD = """
apiVersion: http.keda.sh/v1alpha1
kind: HTTPScaledObject
metadata: {name: shop, namespace: team}
spec:
  hosts: [shop.example.com, "*.shop.example.com"]
  pathPrefixes: [/api, v1/]
  headers: [{name: X-Canary, value: "yes"}, {name: X-Any}]
  scaleTargetRef: {apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: shop-v2, service: shop-svc, portName: http}
  coldStartTimeoutFailoverRef: {service: maintenance, portName: web, port: 80, timeoutSeconds: 5}
  replicas: {min: 1, max: 4}
  targetPendingRequests: 12
  scaledownPeriod: 90
  initialCooldownPeriod: 90
  timeouts: {responseHeader: 1500ms, conditionWait: 25s}
"""
ROUTE = """
apiVersion: http.keda.sh/v1beta1
kind: InterceptorRoute
metadata: {name: shop, namespace: team}
spec:
  target: {service: shop-svc, port: 8080}
  rules:
  - {hosts: [shop.example.com], paths: [{value: /api}], headers: [{name: X-Canary, value: "yes"}]}
  - {hosts: [other.example.com], paths: [{value: /}]}
  scalingMetric:
    concurrency: {targetValue: 7}
    requestRate: {targetValue: 50, window: 2m, granularity: 2s}
  coldStart:
    fallback: {service: {name: maintenance, port: 80, portName: web}}
    placeholder:
      response: {statusCode: 503, body: wait, headers: {A: b}}
    maxPendingRequests: 9
    overflow: Placeholder
  staticRoutes:
  - rules: [{hosts: [a], paths: [{value: /b}], headers: [{name: c, value: d}]}]
    responseMode: Always
    response: {statusCode: 200, body: ok, bodyFromConfigMap: {name: pages, key: ok}, headers: {A: b}}
  timeouts: {readiness: 5s, request: 2m, responseHeader: 10s}
"""
SCALED = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: shop, namespace: team}
spec:
  scaleTargetRef: {apiVersion: apps/v1beta9, kind: StatefulSet, name: web, envSourceContainerName: app}
  minReplicaCount: 2
  maxReplicaCount: 5
  idleReplicaCount: 0
  pollingInterval: 30
  cooldownPeriod: 300
  initialCooldownPeriod: 600
  advanced: {restoreToOriginalReplicaCount: true}
  fallback: {failureThreshold: 3, replicas: 2}
  triggers:
  - {type: external-push, metadata: {interceptorRoute: shop}}
  - type: cron
    metadata: {timezone: Europe/Berlin, start: 0 8 * * 1-5, end: 0 18 * * 1-5, desiredReplicas: "3"}
  - {type: kafka, name: k, metricType: Value, useCachedMetrics: true, authenticationRef: {name: a}, metadata: {}}
"""


PAGES = {"metadata": {"name": "pages"}, "data": {"wait.json": "{}", "index.html": "<p>soon"}}


def read(text: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def route(text: str = ROUTE, **spec: object) -> dict[str, Any]:
    """A route with other fields of its spec; None removes one."""
    document = read(text)
    document["spec"] = {key: value for key, value in (document["spec"] | spec).items() if value is not None}
    return document


def converted(document: dict[str, Any], scaled: dict[str, Any] | None = None) -> Conversion:
    return convert_route(document, [read(SCALED)] if scaled is None else [scaled], pages=[PAGES])


def spec_of(conversion: Conversion) -> ScaledWorkloadSpec:
    assert conversion.spec is not None, conversion.problems
    return conversion.spec


def test_http_scaled_object_is_converted_to_scaled_workload() -> None:
    workload = converted(route(OLD)).workload()
    assert workload["metadata"] == {
        "name": "shop",
        "namespace": "team",
        "annotations": {
            "autoscaling.knative.dev/scale-to-zero-pod-retention-period": "30s",
            "autoscaling.knative.dev/target-utilization-percentage": "100",
        },
    }
    assert workload["spec"] == {
        "target": {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "shop-v2"},
        "service": {"name": "shop-svc", "port": "http"},
        "hosts": ["shop.example.com", "*.shop.example.com"],
        "paths": ["/api", "/v1"],
        "headers": [{"name": "X-Canary", "value": "yes"}, {"name": "X-Any"}],
        "scaling": {"min": 1, "max": 4, "metric": "concurrency", "target": 12.0},
        "waitTimeoutSeconds": 5,
        "responseStartTimeoutSeconds": 2,
        "coldStart": {"fallback": {"name": "maintenance", "port": 80}},
    }


def test_default_granularity_and_short_initial_cooldown_need_no_note() -> None:
    rate = {"requestRate": {"targetValue": 2, "window": "1m", "granularity": "1s"}}
    old = route(OLD, scalingMetric=rate, targetPendingRequests=None, initialCooldownPeriod=60)
    assert not any("granularity" in note or "initial" in note for note in converted(old).notes)
    reason = "a new workload keeps its scale for its window, 60s"
    assert f"spec.initialCooldownPeriod has no effect: {reason}" in converted(route(OLD)).notes


def test_interceptor_route_with_scaled_object_is_converted_to_scaled_workload() -> None:
    workload = converted(route()).workload()
    assert workload["metadata"]["annotations"] == {
        LOAD_ANNOTATION: "concurrency=7, rps=50",
        "autoscaling.knative.dev/scale-to-zero-pod-retention-period": "180s",
        "autoscaling.knative.dev/target-utilization-percentage": "100",
    }
    schedule = {"start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "min": 3, "timeZone": "Europe/Berlin"}
    assert workload["spec"] == {
        "target": {"apiVersion": "apps/v1beta9", "kind": "StatefulSet", "name": "web"},
        "service": {"name": "shop-svc", "port": 8080},
        "hosts": ["shop.example.com"],
        "paths": ["/api"],
        "headers": [{"name": "X-Canary", "value": "yes"}],
        "rules": [{"hosts": ["other.example.com"]}],
        "scaling": {"min": 2, "max": 5, "window": "120s", "schedules": [schedule | {"name": ""}]},
        "maxPendingRequests": 9,
        "waitTimeoutSeconds": 5,
        "timeoutSeconds": 120,
        "responseStartTimeoutSeconds": 10,
        "coldStart": {
            "fallback": {"name": "maintenance", "port": 80},
            "placeholder": {"statusCode": 503, "headers": {"A": "b"}, "body": "wait"},
            "overflow": "Placeholder",
        },
    }


@pytest.mark.parametrize("text", [OLD, ROUTE])
def test_converted_workload_passes_admission(text: str) -> None:
    workload = converted(route(text)).workload()
    admitted = admit(SCALED_WORKLOAD, workload)
    assert merged(admitted, workload) == admitted


@pytest.mark.parametrize(
    ("metric", "scaling"),
    [
        ({"scalingMetric": None}, ("concurrency", 12.0, None)),
        ({"scalingMetric": None, "targetPendingRequests": None}, ("concurrency", 100.0, None)),
        ({"scalingMetric": {"concurrency": {}}}, ("concurrency", 100.0, None)),
        ({"scalingMetric": {"concurrency": {"targetValue": 3}}}, ("concurrency", 3.0, None)),
        ({"scalingMetric": {"requestRate": {"targetValue": 8}}}, ("rps", 8.0, None)),
        ({"scalingMetric": {"requestRate": {"window": "5m"}}}, ("rps", 100.0, "300s")),
    ],
)
def test_scaling_metric_target_and_window_are_converted(metric: dict[str, object], scaling: tuple[object, ...]) -> None:
    own = spec_of(converted(route(OLD, **metric))).scaling
    assert (own.metric, own.target, own.window) == scaling


def test_omitted_fields_have_keda_defaults() -> None:
    bare = {"replicas": None, "scaledownPeriod": None, "scaleTargetRef": {"service": "shop", "port": 80}}
    conversion = converted(route(OLD, **bare), {})
    spec = spec_of(conversion)
    assert (spec.scaling.min_count, spec.scaling.max_count, spec.target.shown) == (0, 100, "Deployment shop")
    assert list(conversion.annotations) == ["autoscaling.knative.dev/target-utilization-percentage"]


@pytest.mark.parametrize(
    ("triggers", "names"),
    [
        ([], False),
        ([{"type": "cron", "metadata": {}}], False),
        ([{"type": "cron"}, {"type": "external-push", "metadata": {"interceptorRoute": "hello"}}], True),
        ([{"type": "external-push", "metadata": {"httpScaledObject": "hello"}}], True),
    ],
)
def test_scaled_object_names_route_only_by_external_push_trigger(triggers: list[dict[str, Any]], names: bool) -> None:
    assert names_route({"spec": {"triggers": triggers}}) is names


def test_timeout_of_0s_is_no_timeout() -> None:
    timeouts = dict.fromkeys(("readiness", "request", "responseHeader"), "0s")
    spec = spec_of(converted(route(timeouts=timeouts, coldStart=None)))
    assert (spec.wait_timeout_seconds, spec.timeout_seconds, spec.response_start_timeout_seconds) == (None, None, None)


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"rules": [{"hosts": ["*", "a.example.com"]}]}, "host * has no effect"),
        ({"rules": [{"paths": [{"value": "/a"}]}]}, "a rule for any host has no effect"),
        (
            {"scalingMetric": {"requestRate": {"targetValue": 1, "window": "1500ms"}}},
            "requestRate.window is 6s instead of 1500ms",
        ),
    ],
)
def test_value_without_effect_is_noted(changed: dict[str, Any], note: str) -> None:
    assert any(note in text for text in converted(route(**changed)).notes)


@pytest.mark.parametrize(("cooldown_s", "goes"), [(15, "goes 60s"), (9000, "goes 3660s")])
def test_unsupported_cooldown_period_is_clamped_and_noted(cooldown_s: int, goes: str) -> None:
    (note,) = [text for text in converted(route(OLD, scaledownPeriod=cooldown_s)).notes if "last pod" in text]
    assert goes in note


def test_negative_cooldown_period_is_rejected() -> None:
    (problem,) = converted(route(OLD, scaledownPeriod=-1)).problems
    assert "scaledownPeriod or cooldownPeriod" in str(problem)


def test_keda_annotation_without_effect_is_noted() -> None:
    document = route(OLD)
    document["metadata"]["annotations"] = {"autoscaling.keda.sh/paused": "true", "team": "a"}
    notes = converted(document).notes
    assert "annotation autoscaling.keda.sh/paused has no effect" in notes
    assert not any("annotation team" in note for note in notes)


@pytest.mark.parametrize(
    ("document", "scaled", "problem"),
    [
        (route(), {}, "spec: it names no workload; expected a ScaledObject with an external-push trigger"),
        (route(OLD, scalingMetric={"concurrency": {}, "requestRate": {}}), {}, "expected one of them"),
        (route(timeouts={"request": "soon"}), None, "spec.timeouts.request: 'soon'; expected a duration"),
        (route(OLD, hosts=["Not_A.Host"]), {}, "spec.hosts[0]: 'not_a.host'"),
    ],
)
def test_unconvertible_route_has_problems(
    document: dict[str, Any], scaled: dict[str, Any] | None, problem: str
) -> None:
    conversion = converted(document, scaled)
    assert conversion.spec is None
    assert problem in "; ".join(map(str, conversion.problems))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"end": None, "timezone": ""}, "no timezone, end"),
        ({"desiredReplicas": "0"}, "desiredReplicas of a cron trigger: '0'"),
        ({"desiredReplicas": "many"}, "'many'"),
    ],
)
def test_incomplete_cron_trigger_is_a_problem(changed: dict[str, Any], problem: str) -> None:
    scaled = read(SCALED)
    scaled["spec"]["triggers"][1]["metadata"] |= changed
    assert problem in str(converted(route(), scaled).problems[0])


def leaves(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in fields_of_schema(schema, ""):
        steps = tuple(step for step in field.replace("[]", ".[]").split(".") if step)
        yield (*path, *steps)


def without(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    """The document without a field, in each item of a list; None if it does not have it."""
    smaller = copy.deepcopy(document)
    places: list[Any] = [smaller]
    for step in path[:-1]:
        places = [inner for place in places for inner in (place if step == "[]" else [place.get(step)]) if inner]
    had = [place.pop(path[-1], None) for place in places if isinstance(place, dict)]
    return smaller if any(value is not None for value in had) else None


@pytest.mark.parametrize(
    ("kind", "text"), [(HTTP_SCALED_OBJECT, OLD), (INTERCEPTOR_ROUTE, ROUTE), (KEDA_SCALED_OBJECT, SCALED)]
)
def test_every_field_of_the_schema_has_an_effect_or_a_note(kind: Kind, text: str) -> None:
    document, silent = read(text), []
    if kind == HTTP_SCALED_OBJECT:
        variants = [
            document,
            route(text, targetPendingRequests=None, scalingMetric={"concurrency": {"targetValue": 2}}),
        ]
        variants.append(
            route(text, scalingMetric={"requestRate": {"targetValue": 2, "window": "2m", "granularity": "3s"}})
        )
        variants.append(route(text, scaleTargetRef={"name": "a", "service": "b", "port": 80}))
        variants.append(route(text, coldStartTimeoutFailoverRef={"service": "m", "portName": "web"}))
    elif kind == INTERCEPTOR_ROUTE:
        variants = [document, route(target={"service": "shop-svc", "portName": "http"})]
        variants.append(route(coldStart={"placeholder": {"response": {"statusCode": 202}}}))
        reference = {"bodyFromConfigMap": {"name": "pages", "key": "wait.json"}}
        variants.append(route(coldStart={"placeholder": {"response": reference}}))
        variants.append(route(coldStart={"fallback": {"service": {"name": "m", "portName": "web"}}}))
    else:
        variants = [document]
    for path in leaves(crds()[kind].schema["properties"]["spec"], ("spec",)):
        if path[-1] in {"[]", "*", "spec"}:
            continue
        smaller = [(variant, without(variant, path)) for variant in variants]
        present = [pair for pair in smaller if pair[1] is not None]
        assert present, f"the test has no {path}"
        if not any(
            acts(kind, variant, result) or is_named(kind, variant, path) for variant, result in present if result
        ):
            silent.append(".".join(path))
    assert silent == []


def acts(kind: Kind, document: dict[str, Any], smaller: dict[str, Any]) -> bool:
    def outcome(fields: dict[str, Any]) -> Conversion | str:
        try:
            return converted(route(), fields) if kind == KEDA_SCALED_OBJECT else converted(fields)
        except (KeyError, TypeError) as error:
            # A required field: the API rejects an object without it.
            return repr(error)

    return outcome(document) != outcome(smaller)


def is_named(kind: Kind, document: dict[str, Any], path: tuple[str, ...]) -> bool:
    notes = converted(route(), document).notes if kind == KEDA_SCALED_OBJECT else converted(document).notes
    plain = [step for step in path if step != "[]"]
    ancestors = {".".join(plain[:length]) for length in range(2, len(plain) + 1)}
    return any(f"{ancestor} has no effect" in note for ancestor in ancestors for note in notes)


@pytest.mark.parametrize(
    ("failover", "timeouts", "wait_s"),
    [
        ({"service": "m", "port": 80, "timeoutSeconds": 7}, {"conditionWait": "25s"}, 7),
        ({"service": "m", "port": 80}, {"conditionWait": "25s"}, 25),
        ({"service": "m", "port": 80}, {}, 30),
    ],
)
def test_failover_timeout_limits_the_wait(failover: dict[str, object], timeouts: dict[str, str], wait_s: int) -> None:
    spec = spec_of(converted(route(OLD, coldStartTimeoutFailoverRef=failover, timeouts=timeouts)))
    assert spec.wait_timeout_seconds == wait_s


def test_fallback_without_timeout_limits_the_wait_to_30_s() -> None:
    fallback = {"fallback": {"service": {"name": "m", "portName": "web"}}}
    spec = spec_of(converted(route(coldStart=fallback, timeouts={"readiness": "0s"})))
    assert spec.wait_timeout_seconds == 30
    assert spec.cold_start.fallback == WorkloadService(name="m", port="web")


BODY = "spec.coldStart.placeholder.response.bodyFromConfigMap"


def placed(reference: dict[str, str], **response: object) -> Conversion:
    """A route with a body from the ConfigMap ``PAGES``."""
    placeholder = {"placeholder": {"response": {"bodyFromConfigMap": reference, **response}}}
    return convert_route(route(coldStart=placeholder), [read(SCALED)], pages=[PAGES])


@pytest.mark.parametrize(
    ("reference", "headers", "expected"),
    [
        ({"name": "pages", "key": "wait.json"}, {}, (202, "{}", {"Content-Type": "application/json"})),
        ({"name": "pages", "key": "wait.json"}, {"content-type": "a/b"}, (202, "{}", {"content-type": "a/b"})),
        ({"name": "pages"}, {}, (202, "<p>soon", {"Content-Type": "text/html"})),
        ({"name": "pages", "key": "none"}, {}, (500, "", {})),
        ({"name": "other", "key": "wait.json"}, {}, (500, "", {})),
    ],
)
def test_placeholder_body_is_read_from_config_map(
    reference: dict[str, str], headers: dict[str, str], expected: tuple[object, ...]
) -> None:
    placeholder = spec_of(placed(reference, statusCode=202, headers=headers)).cold_start.placeholder
    assert placeholder is not None
    assert (placeholder.status_code, placeholder.body, placeholder.headers) == expected


@pytest.mark.parametrize(
    ("reference", "note"),
    [
        ({"name": "pages", "key": "wait.json"}, ""),
        ({"name": "pages"}, f"{BODY} has no key: every path gets index.html"),
        (
            {"name": "other", "key": "a"},
            f"{BODY}: no ConfigMap other with the label http.keda.sh/response-body=true has the key a",
        ),
    ],
)
def test_missing_body_key_or_config_map_is_noted(reference: dict[str, str], note: str) -> None:
    assert [text for text in placed(reference).notes if text.startswith(BODY)] == list(filter(None, [note]))


def test_invalid_placeholder_response_has_problems() -> None:
    placeholder = {"placeholder": {"response": {"statusCode": 100, "headers": {"Content-Length": "3"}}}}
    problems = list(map(str, converted(route(coldStart=placeholder)).problems))
    assert [text.partition(": ")[0] for text in problems] == [
        "spec.coldStart.placeholder.statusCode",
        "spec.coldStart.placeholder.headers",
    ]
