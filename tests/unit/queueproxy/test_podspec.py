"""Reading a queue-proxy's environment."""

import msgspec
import pytest

from serving.core.model.errors import SettingsError
from serving.queueproxy.podspec import FreezerPlace, PodSpec, Probe, probing_app, read_probe, spec_from_environment

NEEDED = {
    "SERVING_POD_NAMESPACE": "default",
    "SERVING_POD_REVISION": "hello-00001",
    "SERVING_POD_NAME": "hello-1",
    "SERVING_POD_APP": "127.0.0.1:5000",
}


def test_four_variables_suffice() -> None:
    assert spec_from_environment(NEEDED) == PodSpec(
        namespace="default", revision="hello-00001", pod="hello-1", app=("127.0.0.1", 5000)
    )


def test_variable_of_earlier_version_is_ignored() -> None:
    variable = "SERVING_QUEUEPROXY_REPORT_PERIOD_S"
    assert spec_from_environment(NEEDED | {variable: "0.5"}) == spec_from_environment(NEEDED)


def test_all_variables_are_read() -> None:
    spec = spec_from_environment(
        NEEDED
        | {
            "PATH": "/bin",
            "SERVING_POD_LISTEN": "127.64.0.1:8012",
            "SERVING_POD_ADMIN_LISTEN": "[::1]:8022",
            "SERVING_LISTEN_FDS": '{"requests": 3}',
            "SERVING_POD_READINESS": '{"tcpSocket": {"port": 0}}',
            "SERVING_POD_STATS_URL": "ws://a/stats",
            "SERVING_POD_STATS_TOKEN": "token",
            "SERVING_POD_STATS_TOKEN_FILE": "/etc/token",
            "SERVING_POD_SECRET": "secret",
            "SERVING_POD_APP_USER": "1879048969",
            "SERVING_READY_FD": "4",
            "SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY": "10",
            "SERVING_QUEUEPROXY_HTTP_HEAD_BYTES_MAX": "65536",
        }
    )
    assert (spec.listen, spec.admin, spec.listen_fds) == (("127.64.0.1", 8012), ("::1", 8022), {"requests": 3})
    assert (spec.stats_url, spec.stats_token, spec.secret, spec.ready_fd) == ("ws://a/stats", "token", "secret", 4)
    assert spec.stats_token_file.endswith("/token")
    assert (spec.settings.slots, spec.settings.http.head_bytes_max) == (10, 65536)
    assert spec.readiness == Probe()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SERVING_POD_NAMESPACE", ""),
        ("SERVING_POD_NAME", "a/b"),
        ("SERVING_POD_APP", "5000"),
        ("SERVING_POD_APP", "a:b"),
        ("SERVING_POD_APP", "a:65536"),
        ("SERVING_LISTEN_FDS", "[]"),
        ("SERVING_POD_READINESS", "tcp"),
        ("SERVING_POD_APP_USER", "-1"),
        ("SERVING_READY_FD", "out"),
        ("SERVING_POD_GAUGES", "a,b"),
        ("SERVING_POD_SLO", "p95"),
        ("SERVING_POD_METRICS_PATH", "metrics"),
        ("SERVING_POD_METRICS_PATH", "/a\r\nb: c"),
        ("SERVING_POD_METRICS_PORT", "0"),
        ("SERVING_POD_GUARDED", "yes"),
        ("SERVING_POD_DORMANT_AFTER_S", "0"),
        ("SERVING_POD_DORMANT_AFTER_S", "soon"),
        ("SERVING_POD_DORMANT_CALL", "POST /sleep"),
        ("SERVING_POD_FREEZER", "/sys/fs/cgroup/p"),
        ("SERVING_QUEUEPROXY_DRAIN_LAG_S", "-1"),
    ],
)
def test_invalid_variable_is_reported(variable: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        spec_from_environment(NEEDED | {variable: text})
    (problem,) = caught.value.problems
    assert problem.where == f"environment {variable}"


def test_metrics_page_path_defaults_to_metrics() -> None:
    pod_spec = spec_from_environment(NEEDED | {"SERVING_POD_GAUGES": '["a"]', "SERVING_POD_METRICS_PORT": "9090"})
    assert (pod_spec.gauges, pod_spec.metrics_path, pod_spec.metrics_port) == (("a",), "/metrics", 9090)
    assert spec_from_environment(NEEDED | {"SERVING_POD_METRICS_PATH": "/m"}).metrics_path == "/m"


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(SettingsError) as caught:
        spec_from_environment({"SERVING_READY_FD": "out", "SERVING_QUEUEPROXY_NO_SUCH": "1"})
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    ("text", "probe"),
    [
        ("{}", Probe()),
        ('{"httpGet": {}}', Probe(path="/")),
        (
            '{"httpGet": {"path": "/h", "port": 9, "httpHeaders": [{"name": "A", "value": "b"}]}, "periodSeconds": 0}',
            Probe(path="/h", port=9, headers=(("A", "b"),), period_s=0),
        ),
        ('{"httpGet": {"port": "http1"}, "timeoutSeconds": 0, "failureThreshold": 0}', Probe(path="/", failure_max=1)),
        ('{"timeoutSeconds": 3, "failureThreshold": 5, "successThreshold": 1}', Probe(timeout_s=3, failure_max=5)),
        ('{"tcpSocket": {"port": 7}}', Probe(port=7)),
        ('{"exec": {"command": ["true"]}}', Probe()),
    ],
)
def test_kubernetes_probe_is_parsed(text: str, probe: Probe) -> None:
    assert read_probe(text) == probe


@pytest.mark.parametrize("text", ["", "[]", '{"timeoutSeconds": -1}', '{"httpGet": 1}'])
def test_invalid_probe_is_rejected(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_probe(text)


@pytest.mark.parametrize(("name", "is_http2"), [("http1", False), ("h2c", True)])
def test_port_name_selects_protocol(name: str, is_http2: bool) -> None:
    assert spec_from_environment(NEEDED | {"SERVING_POD_PROTOCOL": name}).is_http2 is is_http2


def test_unknown_protocol_is_rejected() -> None:
    with pytest.raises(SettingsError, match="http1 or h2c"):
        spec_from_environment(NEEDED | {"SERVING_POD_PROTOCOL": "spdy"})


def test_probe_with_secret_is_marked_for_in_process_queue_proxy() -> None:
    probe = Probe(path="/health", headers=(("A", "1"),))
    marked = probing_app(probe, secret="s")  # noqa: S106 - of a test
    assert marked.headers == (("A", "1"), ("K-Pod-Secret", "s"), ("K-Network-Probe", "app"))
    assert probing_app(probe, secret="") == probe


def test_dormancy_variables_are_read() -> None:
    spec = spec_from_environment(
        NEEDED
        | {
            "SERVING_POD_DORMANT_AFTER_S": "0.1",
            "SERVING_POD_DORMANT_CALL": "POST /sleep, POST /wake_up",
            "SERVING_POD_PROCESSES": "/state/processes/p.",
            "SERVING_POD_FREEZER": '{"root": "/sys/fs/cgroup", "folder": "/sys/fs/cgroup/pods/p"}',
        }
    )
    assert (spec.dormant_after_s, spec.processes) == (0.1, "/state/processes/p.")
    assert spec.dormant_call is not None
    assert spec.dormant_call.wake.target == "/wake_up"
    assert spec.freezer == FreezerPlace(root="/sys/fs/cgroup", folder="/sys/fs/cgroup/pods/p", is_unified=True)


def test_inner_tls_requires_authority() -> None:
    inner = NEEDED | {"SERVING_QUEUEPROXY_INNER_TLS_MODE": "Enabled"}
    with pytest.raises(SettingsError, match="SERVING_POD_AUTHORITY"):
        spec_from_environment(inner)
    whole = inner | {"SERVING_POD_AUTHORITY": "PEM", "SERVING_POD_STATS_URL": "wss://autoscaler:8080/stats"}
    assert spec_from_environment(whole).authority == "PEM"


def test_slo_text_is_unchanged() -> None:
    assert spec_from_environment(NEEDED | {"SERVING_POD_SLO": "p95<300ms"}).slo == "p95<300ms"


@pytest.mark.parametrize(("text", "is_guarded"), [("true", True), ("false", False)])
def test_guarded_variable_is_read(text: str, is_guarded: bool) -> None:
    assert spec_from_environment(NEEDED | {"SERVING_POD_GUARDED": text}).is_guarded is is_guarded
