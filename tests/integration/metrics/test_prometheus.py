"""A real Prometheus scrapes the daemons and pods of a running ``serving up`` and evaluates the dashboard's expressions."""

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from serving.home.supervisor.binding import PORTS
from serving.net.metrics.names import TABLES, MetricKind
from serving.tools.samples import hello

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "config" / "monitoring"
PROMETHEUS = shutil.which("prometheus") or ""
PAGES = ("activator-metrics", "control-metrics", "stats")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
# The metrics that prometheus_client adds about Python and the process.
FOREIGN = ("process_", "python_")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
needs_prometheus = pytest.mark.skipif(not PROMETHEUS, reason="prometheus is not on PATH: make system-packages")


class Up(msgspec.Struct, frozen=True):
    """A running system: its state folder, and its ports by name."""

    state: Path
    ports: dict[str, int]

    @property
    def bearer(self) -> str:
        """The Authorization of queries."""
        return f"Bearer {(self.state / 'query-token').read_text()}"

    def pod_addresses(self, revision: str) -> list[str]:
        """The addresses of a revision's ready pods."""
        token = (self.state / "token").read_text()
        selector = urllib.parse.quote(f"serving.knative.dev/revision={revision}")
        url = f"https://127.0.0.1:{self.ports['api']}/api/v1/namespaces/default/pods?labelSelector={selector}"
        trusted = ssl.create_default_context(cafile=self.state / "certificates" / "authority.crt")
        pods = json.loads(fetch(url, trusted, Authorization=f"Bearer {token}"))["items"]
        return [pod["status"]["podIP"] for pod in pods]


def fetch(url: str, trusted: ssl.SSLContext | None = None, **headers: str) -> str:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own address
    with urllib.request.urlopen(request, timeout=30, context=trusted) as response:  # noqa: S310 - as above
        text: str = response.read().decode()
    return text


def until(holds: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Poll until a condition holds."""
    deadline_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.1)


@contextlib.contextmanager
def running(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The ports of a system whose sample service was woken by a traced request."""
    state = tmp_path_factory.mktemp("state")
    free = [f"--{port.name}-port=0" for port in PORTS]
    with running([sys.executable, "-m", "serving", "up", f"--state={state}", "--sample", *free]):
        until((state / "ports.json").exists)
        # Pods cannot read the state folder.
        app = tmp_path_factory.mktemp("app")
        (app / "steady.py").write_text(Path(hello.__file__).read_text())
        deploy = ["deploy", "steady", str(app), "--command", f"{sys.executable} steady.py", "--min-scale", "2"]
        subprocess.run([sys.executable, "-m", "serving", *deploy, "--state", str(state)], cwd=ROOT, check=True)
        ports: dict[str, int] = json.loads((state / "ports.json").read_text())
        public = f"http://127.0.0.1:{ports['public']}/"
        until(lambda: "Hello" in fetch(public, Host="hello.default.localhost", traceparent=TRACEPARENT))
        yield Up(state, ports)


@pytest.mark.parametrize("name", PAGES)
def test_metrics_page_is_openmetrics_with_documented_metrics_only(up: Up, name: str) -> None:
    page = fetch(f"http://127.0.0.1:{up.ports[name]}/metrics", None, Accept=OPENMETRICS, Authorization=up.bearer)
    documented = {
        metric.name.removesuffix("_total" if metric.kind is MetricKind.COUNTER else "")
        for table in TABLES
        for metric in table.metrics
    }
    families = list(text_string_to_metric_families(page))
    names = {family.name for family in families if not family.name.startswith(FOREIGN)}
    assert names <= documented, names - documented
    assert names


def test_incoming_trace_id_is_attached_as_exemplar(up: Up) -> None:
    page = fetch(
        f"http://127.0.0.1:{up.ports['activator-metrics']}/metrics", None, Accept=OPENMETRICS, Authorization=up.bearer
    )
    assert f'# {{trace_id="{TRACEPARENT.split("-")[1]}"}}' in page


@needs_prometheus
def test_prometheus_scrapes_daemons_and_pods_for_a_minute_without_parse_errors(up: Up, tmp_path: Path) -> None:
    pods = [f"{address}:8022" for address in up.pod_addresses("steady-00001")]
    assert len(pods) == 2
    target_count = len(PAGES) + len(pods)
    with prometheus(scrape_config(up, pods), tmp_path) as api:
        until(lambda: count_of(api, "sum(count_over_time(up[2m]) >= bool 60)") == target_count, within_s=120)
        assert count_of(api, "count(min_over_time(up[2m]) == 1)") == target_count
        targets = json.loads(fetch(f"{api}/targets"))["data"]["activeTargets"]
        assert {(target["health"], target["lastError"]) for target in targets} == {("up", "")}
        assert count_of(api, "count(queueproxy_app_ready == 1)") == len(pods)
        assert count_of(api, "min(scrape_samples_scraped)") > 10
        assert faults_of(fetch(f"{api.removesuffix('/api/v1')}/metrics")) == {}


@needs_prometheus
def test_prometheus_evaluates_every_dashboard_expression(up: Up, tmp_path: Path) -> None:
    with prometheus(scrape_config(up, []), tmp_path) as api:
        until(lambda: count_of(api, "min(count_over_time(up[1m]))") >= 5)
        of_hello = '{kn_revision_name="hello-00001"}'
        until(lambda: count_of(api, f"kn_revision_pods_requested{of_hello}") == 0, within_s=120)
        fetch(f"http://127.0.0.1:{up.ports['public']}/", Host="hello.default.localhost")
        until(lambda: count_of(api, "sum(serving_cold_start_duration_seconds_count)") >= 1)
        for expression in dashboard_expressions():
            response = query(api, expression)
            assert response["status"] == "success", expression
        assert count_of(api, f"kn_revision_pods_requested{of_hello}") >= 0
        rules = json.loads(fetch(f"{api}/rules"))["data"]["groups"]
        assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
        names = set(json.loads(fetch(f"{api}/label/__name__/values"))["data"])
        requests = {name for expression in dashboard_expressions() for name in metric_names(expression)}
        # A counter without increments has no row; no request was refused.
        assert requests - names <= {"serving_requests_refused_total"}


def scrape_config(up: Up, pods: list[str]) -> dict[str, Any]:
    """The shipped configuration with an interval of 1 s and the ports of this system and its pods."""
    config: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(MONITORING / "alerts.yaml")]
    by_default = {port.number: up.ports[port.name] for port in PORTS if port.name in up.ports}
    for job in config["scrape_configs"]:
        [there] = job["static_configs"]
        job["authorization"]["credentials_file"] = str(up.state / "query-token")
        there["targets"] = [f"127.0.0.1:{by_default[int(target.rpartition(':')[2])]}" for target in there["targets"]]
    if pods:
        token = {"credentials_file": str(up.state / "query-token")}
        config["scrape_configs"].append(
            {"job_name": "pods", "authorization": token, "static_configs": [{"targets": pods}]}
        )
    return config


@contextlib.contextmanager
def prometheus(config: dict[str, Any], folder: Path) -> Iterator[str]:
    """A running Prometheus; yields the URL of its API."""
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    # Prometheus does not report a port that the system selected, so it gets a loopback address that is unique to it.
    address = f"127.78.{os.getpid() >> 8 & 255}.{os.getpid() & 255}:9090"
    options = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with running([PROMETHEUS, *options, f"--web.listen-address={address}"]):
        yield f"http://{address}/api/v1"


def faults_of(page: str) -> dict[str, float]:
    """Prometheus' counters of rejected samples that are not zero."""
    faults = {
        *("out_of_order", "duplicate_timestamp", "out_of_bounds"),
        *("exceeded_sample_limit", "exceeded_body_size_limit", "exemplar_out_of_order"),
    }
    names = {f"prometheus_target_scrapes_{fault}_total" for fault in faults}
    names |= {f"prometheus_target_scrapes_sample_{fault}_total" for fault in faults}
    lines = [line.split() for line in page.splitlines() if line.split("{")[0].split(" ")[0] in names]
    assert lines
    return {name: float(value) for name, value in lines if float(value)}


def query(api: str, expression: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(fetch(f"{api}/query?{urllib.parse.urlencode({'query': expression})}"))
    return document


def count_of(api: str, expression: str) -> float:
    result = query(api, expression)["data"]["result"]
    return float(result[0]["value"][1]) if result else -1.0


def dashboard_expressions() -> list[str]:
    """The expressions of the dashboard, with the initial values of its variables."""
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    results = [target["expr"] for panel in panels for target in panel["targets"]]
    values = {"$namespace": ".*", "$revision": ".*", "$__rate_interval": "1m"}
    for name, value in values.items():
        results = [expression.replace(name, value) for expression in results]
    return results


def metric_names(expression: str) -> set[str]:
    words = expression.replace("{", " ").replace("(", " ").replace("[", " ").replace(")", " ").split()
    return {word for word in words if word.startswith(("kn_revision_pods", "serving_", "autoscaler_", "http_server_"))}
