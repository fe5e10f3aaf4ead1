"""Deployments of users on one machine: adopt and release, Ingresses, and KEDA's HTTPScaledObjects."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.home.state import StateFolder
from tests.e2e.cli_stage import SAMPLE, Stage

pytestmark = pytest.mark.timeout(300)
_PATIENCE_S = 90.0
# The shortest window, 6 s, so that the scale reaches zero soon.
SOON = "{autoscaling.knative.dev/window: 6s}"
APP = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, annotations: {soon}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}, annotations: {{serving.dev/command: "{command}"}}}}
    spec: {{containers: [{{name: app, image: none}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 80, targetPort: 8080}}]}}
---
"""
INGRESS = """
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front}
spec:
  tls: [{hosts: [front.example.com]}]
  rules:
  - host: front.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}]}
"""
KEDA = """
apiVersion: http.keda.sh/v1alpha1
kind: HTTPScaledObject
metadata: {name: old}
spec:
  hosts: [old.example.com]
  scaleTargetRef: {name: old, service: old, port: 80}
  scaledownPeriod: 60
  initialCooldownPeriod: 5
"""


def app(name: str) -> str:
    return APP.format(name=name, soon=SOON, command=SAMPLE)


def applied(serving: Stage, folder: Path, text: str) -> Any:  # noqa: ANN401 - click's
    (folder / "file.yaml").write_text(text)
    return serving("apply", "-f", str(folder / "file.yaml"))


def send_request(serving: Stage, host: str, *, listener: str = "public") -> httpx.Response:
    port = StateFolder(serving.state).read_ports()[listener]
    return httpx.get(f"http://127.0.0.1:{port}/", headers={"Host": host}, timeout=_PATIENCE_S)


def present(serving: Stage, kind: str, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(serving("get", kind, name, "-o", "json").stdout)
    return document


def until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def replicas(serving: Stage, name: str) -> int:
    count: int = present(serving, "deploy", name)["spec"]["replicas"]
    return count


def test_adopted_deployment_scales_from_zero_and_is_released(serving: Stage, tmp_path: Path) -> None:
    applied(serving, tmp_path, app("shop"))
    stdout = serving("adopt", "deploy/shop", "--host", "shop.example.com", "--window", "6s").stdout
    assert "deployment/shop is scaled by its requests as scaledworkload/shop" in stdout
    assert "curl -H 'Host: shop.example.com'" in stdout
    assert send_request(serving, "shop.example.com").status_code == 200
    until(lambda: replicas(serving, "shop") == 0)
    assert send_request(serving, "shop.example.com").status_code == 200
    assert "deployment/shop" in serving("get").stdout
    until(lambda: "shop (Deployment)  active" in serving("top", "--once").stdout)
    until(lambda: "shop (Deployment)" in serving("cost").stdout)
    assert "200 GET /" in serving("requests", "shop").stdout
    described = serving("describe", "shop").stdout
    assert "scaledworkload shop" in described
    assert "1/1" in described.partition("Pods")[2]
    assert "0 → 1" in serving("why", "shop").stdout
    stdout = serving("release", "deploy/shop").stdout
    assert "deployment/shop has 2 replicas again" in stdout
    assert replicas(serving, "shop") == 2
    until(lambda: send_request(serving, "shop.example.com").status_code == 404)


def test_service_is_adopted_in_place_and_restored_by_release(serving: Stage, tmp_path: Path) -> None:
    applied(serving, tmp_path, app("inner"))
    until(lambda: "2/2" in serving("get", "deploy", "inner").stdout)
    serving("adopt", "deploy/inner", "--in-place", "--window", "6s")
    assert "selector" not in present(serving, "svc", "inner")["spec"]
    listed = json.loads(serving("get", "endpointslices", "-l", "kubernetes.io/service-name=inner", "-o", "json").stdout)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["inner-activators-ipv4"]
    for host in ("inner", "inner.default", "inner.default.svc.cluster.local"):
        assert send_request(serving, host, listener="inner").status_code == 200
    assert send_request(serving, "inner").status_code == 404
    until(lambda: replicas(serving, "inner") == 0)
    assert send_request(serving, "inner.default", listener="inner").status_code == 200
    serving("release", "inner")
    assert present(serving, "svc", "inner")["spec"]["selector"] == {"app": "inner"}
    assert "inner-pods" not in serving("get", "svc").stdout
    assert replicas(serving, "inner") == 2


def test_ingress_serves_a_deployment_from_zero(serving: Stage, tmp_path: Path) -> None:
    output = applied(serving, tmp_path, app("front") + INGRESS).output
    assert "note: ingress/front: requests for front.example.com go to deployment/front" in output
    assert "note: ingress/front: spec.tls has no effect" in output
    until(lambda: send_request(serving, "front.example.com").status_code == 200)
    until(lambda: replicas(serving, "front") == 0)
    assert send_request(serving, "front.example.com").status_code == 200
    serving("delete", "ingress/front")
    until(lambda: send_request(serving, "front.example.com").status_code == 404)


def test_http_scaled_object_is_served_unchanged(serving: Stage, tmp_path: Path) -> None:
    applied(serving, tmp_path, app("old") + KEDA)
    until(lambda: send_request(serving, "old.example.com").status_code == 200)
    until(lambda: bool(present(serving, "httpso", "old").get("status")))
    conditions = {
        condition["type"]: condition for condition in present(serving, "httpso", "old")["status"]["conditions"]
    }
    assert conditions["Converted"]["message"] == "every field acts"
    until(lambda: ready_of(present(serving, "httpso", "old")) == "True")
    serving("delete", "httpso/old")
    until(lambda: send_request(serving, "old.example.com").status_code == 404)


def ready_of(route: dict[str, Any]) -> str:
    return next(str(condition["status"]) for condition in route["status"]["conditions"] if condition["type"] == "Ready")


def test_service_commands_support_scaled_workloads(serving: Stage, tmp_path: Path) -> None:
    applied(serving, tmp_path, app("verbs"))
    # At least one pod, so that logs and exec have a pod however long the commands take.
    options = ("--path", "/sleep", "--window", "6s", "--min", "1")
    serving("adopt", "deploy/verbs", "--host", "verbs.example.com", *options)
    assert serving("wait", "verbs").stdout.startswith("verbs is ready at http://verbs.example.com:")
    # The URL has the workload's path.
    assert serving("url", "verbs").stdout.splitlines()[0].endswith("/sleep")
    assert serving("url", "verbs", "--cluster-local").stdout == "http://verbs.default.svc.cluster.local\n"
    assert serving("invoke", "verbs", "/sleep/0").exit_code == 0
    # The stage appends --state, which exec would pass to the command, so it is given first.
    assert serving("exec", f"--state={serving.state}", "verbs", "--", "echo", "inside").stdout.startswith("inside ")
    serving.until("GET /sleep/0", "logs", "verbs")
    assert "GET /sleep/0" in serving("logs").stdout
    assert serving("scale", "verbs", "--min", "0", "--max", "3").stdout == "verbs: at least 0 pods, at most 3\n"
    assert present(serving, "scaledworkload", "verbs")["spec"]["scaling"] == {"min": 0, "max": 3, "window": "6s"}
    assert serving("wait", "verbs", "--for", "zero", "--timeout", "90").stdout == "verbs is at zero\n"
    assert "GET /sleep/0" in serving("logs", "verbs", "--previous").stdout
    for verb in ("traffic", "compare", "update"):
        output = serving(verb, "verbs", *(["-e", "A=b"] if verb == "update" else []), code=1).output
        assert "verbs is a ScaledWorkload: `serving describe verbs` shows it" in output
    assert "public and has no token" in serving("token", "verbs", code=1).output
    serving("release", "verbs")
    assert serving("wait", "verbs", "--for", "gone").stdout == "verbs is gone\n"
