from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

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


@pytest.mark.parametrize(("route", "host"), [(ROUTE, "app.example.com"), (OLD, "old.example.com")])
def test_keda_http_route_becomes_a_scaled_workload(tmp_path: Path, route: str, host: str) -> None:
    (workload,), done = converted(tmp_path, KEDA + route)
    assert workload["kind"] == "ScaledWorkload"
    assert workload["spec"]["target"]["name"] == "app"  # type: ignore[index]
    assert workload["spec"]["hosts"] == [host]  # type: ignore[index]
    assert "note: Deployment app stays as it is: apply it beside the output" in done.stderr


def test_the_items_of_a_list_are_converted(tmp_path: Path) -> None:
    text = yaml.safe_dump({"kind": "List", "items": [yaml.safe_load(OLD)]})
    ((workload,), _) = converted(tmp_path, text)
    assert workload["kind"] == "ScaledWorkload"


def test_ineffective_fields_and_unconverted_objects_are_noted(tmp_path: Path) -> None:
    stray = "---\nkind: ScaledObject\nmetadata: {name: other}\n"
    _, done = converted(tmp_path, KEDA + ROUTE.replace("granularity: 1s", "granularity: 2s") + stray)
    granularity = "spec.scalingMetric.requestRate.granularity has no effect: requests are counted each second"
    assert f"note: InterceptorRoute route: {granularity}" in done.stderr
    assert "note: ScaledObject other is not converted" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROUTE.partition("---")[0], "InterceptorRoute route: spec: it names no workload; expected a ScaledObject"),
        (OLD.replace("min: 1", "min: one"), "HTTPScaledObject old: spec.replicas.min: "),
        (ROUTE.replace("maxReplicaCount: 5", "maxReplicaCount: five"), "ScaledObject app: spec.maxReplicaCount: "),
        (ROUTE.replace("cooldownPeriod: 15", "cooldownPeriod: -15"), ": -15; expected 0 or more seconds"),
        (ROUTE.replace("rules: [{", "rules: [5, {"), "InterceptorRoute route: spec.rules[0]: "),
        ("a: 1", "nothing to convert"),
        (
            "services: {web: {image: a, profiles: [dev]}}",
            "web: not converted: no profile of it is chosen; --profile dev does",
        ),
        ("services: {web: {build: {ssh: [a]}}}", "'services.web.build.ssh' is not convertible"),
        ("a: [\n", ":2: not YAML: did not find expected node content"),
        ("a: !!int x", ":1: not YAML: this is no int"),
    ],
)
def test_unconvertible_manifest_is_reported(tmp_path: Path, text: str, message: str) -> None:
    _, done = converted(tmp_path, text, code=2)
    assert message in done.stderr


def test_unavailable_short_names_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "services: {api: {image: a, expose: [80]}}"
    monkeypatch.setattr(convert, "can_mount", lambda: False)
    assert f"note: {UNRESOLVED}; this concerns http://api:80/" in converted(tmp_path, text)[1].stderr
    monkeypatch.setattr(convert, "can_mount", lambda: True)
    monkeypatch.setattr(convert, "privileged_problem", lambda port: f"port {port} needs root")
    assert "note: http://api:80/: port 80 needs root" in converted(tmp_path, text)[1].stderr
