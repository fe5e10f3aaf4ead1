from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from serving.home.admission.admission import admit
from serving.net.cluster.kinds import SCALING_POLICY
from serving.tools.cli.client.shortnames import UNRESOLVED
from serving.tools.cli.main import main
from serving.tools.cli.services import convert

KEDA = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, namespace: team}
spec:
  template:
    spec:
      nodeSelector: {a: b}
      containers:
      - name: app
        image: example.com/app:1
        lifecycle: {}
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /ready, port: http}}
---
"""
ROUTE = """
apiVersion: http.keda.sh/v1beta1
kind: InterceptorRoute
metadata: {name: route}
spec:
  target: {service: app-svc, port: 8080}
  rules: [{hosts: [app.example.com], paths: [{value: /api}]}]
  scalingMetric: {requestRate: {targetValue: 100, window: 1m, granularity: 1s}}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: app}
spec:
  scaleTargetRef: {name: app}
  minReplicaCount: 0
  maxReplicaCount: 5
  cooldownPeriod: 15
  triggers: [{type: external-push, metadata: {interceptorRoute: route}}]
"""
OLD = """
apiVersion: http.keda.sh/v1alpha1
kind: HTTPScaledObject
metadata: {name: old}
spec:
  hosts: [old.example.com]
  scaleTargetRef: {name: app, service: app-svc, port: 8080}
  replicas: {min: 1, max: 4}
  scalingMetric: {concurrency: {targetValue: 20}}
"""


def converted(tmp_path: Path, text: str, *, code: int = 0) -> tuple[list[dict[str, object]], Result]:
    (tmp_path / "file.yaml").write_text(text)
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "file.yaml")])
    assert done.exit_code == code, done.output
    return list(yaml.safe_load_all(done.stdout)), done


@pytest.mark.parametrize(
    ("route", "scaling", "host"),
    [
        (
            ROUTE,
            {
                "min-scale": "0",
                "max-scale": "5",
                "scale-to-zero-pod-retention-period": "15s",
                "metric": "rps",
                "target": "100",
                "window": "1m",
            },
            "app.example.com",
        ),
        (OLD, {"min-scale": "1", "max-scale": "4", "metric": "concurrency", "target": "20"}, "old.example.com"),
    ],
)
def test_a_route_of_keda_with_its_deployment_is_a_service_and_its_hosts(
    tmp_path: Path, route: str, scaling: dict[str, str], host: str
) -> None:
    (service, mapping), done = converted(tmp_path, KEDA + route)
    assert service["metadata"] == {"name": "app", "namespace": "team"}
    template = service["spec"]["template"]  # type: ignore[index]
    assert template["metadata"]["annotations"] == {
        f"autoscaling.knative.dev/{key}": text for key, text in scaling.items()
    }
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"containerPort": 8080}]
    assert container["readinessProbe"] == {"httpGet": {"path": "/ready"}}
    assert (mapping["kind"], mapping["metadata"]["name"]) == ("DomainMapping", host)  # type: ignore[index]
    assert "nodeSelector of its pods is left out" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OLD, "a Deployment in the same files"),
        ("a: 1", "nothing to convert"),
        ("a: [\n", ":2: not YAML: did not find expected node content"),
        ("a: !!int x", ":1: not YAML: this is no int"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path: Path, text: str, said: str) -> None:
    _, done = converted(tmp_path, text, code=2)
    assert said in done.stderr


def with_cron(**changed: object) -> str:
    """A route whose ScaledObject has a cron trigger, and another, unrelated Deployment."""
    fields = {
        "timezone": "Europe/Berlin",
        "start": "0 8 * * 1-5",
        "end": "0 18 * * 1-5",
        "desiredReplicas": "5",
    } | changed
    cron = "{" + ", ".join(f"{key}: '{value}'" for key, value in fields.items() if value is not None) + "}"
    last = "metadata: {interceptorRoute: route}}"
    other = "kind: ScaledObject\nspec: {scaleTargetRef: {name: other}, triggers: [{type: cron}]}\n"
    return f"{KEDA}{ROUTE.replace(last, f'{last}, {{type: cron, metadata: {cron}}}')}---\n{other}"


def test_cron_triggers_of_keda_are_schedules_that_the_api_takes(tmp_path: Path) -> None:
    (_, _, policy), _ = converted(tmp_path, with_cron())
    assert policy["metadata"] == {"name": "app", "namespace": "team"}
    schedule = {"timeZone": "Europe/Berlin", "start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "min": 5}
    assert policy["spec"] == {"targetRef": {"kind": "Service", "name": "app"}, "schedules": [schedule]}
    assert admit(SCALING_POLICY, policy)["spec"]["schedules"] == [schedule]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"end": None, "timezone": ""}, "no timezone, end"),
        ({"desiredReplicas": "0"}, "desiredReplicas of a cron trigger of ScaledObject app from 1 on"),
        ({"desiredReplicas": "many"}, "'many'"),
    ],
)
def test_a_cron_trigger_that_is_not_whole_is_named(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    _, done = converted(tmp_path, with_cron(**changed), code=2)
    assert said in done.stderr


def test_a_machine_that_cannot_resolve_short_names_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "services: {api: {image: a, expose: [80]}}"
    monkeypatch.setattr(convert, "can_mount", lambda: False)
    assert f"note: {UNRESOLVED}; this concerns http://api:80/" in converted(tmp_path, text)[1].stderr
    monkeypatch.setattr(convert, "can_mount", lambda: True)
    monkeypatch.setattr(convert, "privileged_problem", lambda port: f"port {port} needs root")
    assert "note: http://api:80/: port 80 needs root" in converted(tmp_path, text)[1].stderr


def test_every_field_of_a_route_that_is_not_read_is_a_note(tmp_path: Path) -> None:
    text = """
kind: HTTPScaledObject
metadata: {name: old, labels: {a: b}}
spec:
  hosts: [old.example.com, "*.example.com"]
  pathPrefixes: ["/"]
  headers: [{name: X-Canary, value: "yes"}]
  targetPendingRequests: 12
  initialCooldownPeriod: 90
  timeouts: {responseHeader: 8s, conditionWait: 25s}
  coldStartTimeoutFailoverRef: {service: maintenance, port: 80}
  scaleTargetRef: {name: app}
  replicas: {min: 0, max: 6, extra: 1}
---
kind: ConfigMap
metadata: {name: words}
"""
    labelled = KEDA.replace(
        "  template:\n", "  replicas: 3\n  template:\n    metadata: {annotations: {a: b}, labels: {c: d}}\n", 1
    )
    (service, mapping), done = converted(tmp_path, labelled + text)
    template = service["spec"]["template"]  # type: ignore[index]
    prefix = "autoscaling.knative.dev"
    scaling = {f"{prefix}/max-scale": "6", f"{prefix}/metric": "concurrency", f"{prefix}/target": "12"}
    assert template["metadata"]["annotations"] == {"a": "b", **scaling}
    assert template["spec"]["responseStartTimeoutSeconds"] == 8
    assert mapping["metadata"]["name"] == "old.example.com"  # type: ignore[index]
    for note in (
        *(
            f"HTTPScaledObject old: {field} is not converted"
            for field in (
                *("metadata.labels", "spec.headers", "spec.initialCooldownPeriod", "spec.timeouts.conditionWait"),
                *("spec.coldStartTimeoutFailoverRef", "spec.replicas.extra"),
            )
        ),
        "Deployment app: spec.replicas is not converted",
        "Deployment app: spec.template.metadata.labels is not converted",
        "old: host *.example.com is left out",
        "ConfigMap words is not converted: apply it beside the output",
    ):
        assert f"note: {note}" in done.stderr, done.stderr
    assert "rules on paths" not in done.stderr


def test_a_trigger_without_an_equivalent_is_a_note(tmp_path: Path) -> None:
    scaled = ROUTE.replace("triggers: [", "triggers: [{type: kafka}, ")
    assert "ScaledObject app: its trigger kafka is not converted" in converted(tmp_path, KEDA + scaled)[1].stderr
