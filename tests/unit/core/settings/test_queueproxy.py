"""Derived values of the settings of the queue-proxy."""

import msgspec
import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.daemons import DAEMONS
from serving.core.settings.load import load
from serving.core.settings.queueproxy import (
    QUEUEPROXY,
    MeterQuirks,
    QueueProxySettings,
    RequestLogSettings,
    changed_variables,
    load_variables,
)

METRIC = "autoscaling.serving.dev/metric"


def test_defaults_are_those_of_knative() -> None:
    settings = QueueProxySettings()
    assert (settings.report_period_s, settings.queue_wait_max_s, settings.quirks) == (1.0, 300.0, MeterQuirks())


def test_queue_depth_is_10_per_slot() -> None:
    settings = QueueProxySettings(container_concurrency=3)
    assert (settings.slots, settings.queue_depth_max) == (3, 30)


def test_concurrency_0_means_no_limit_and_no_queue() -> None:
    settings = QueueProxySettings(container_concurrency=0)
    assert (settings.slots, settings.queue_depth_max) == (None, 0)


def test_request_log_requires_template() -> None:
    environment = {"SERVING_QUEUEPROXY_LOGGING_ENABLE_REQUEST_LOG": "true"}
    assert load(QUEUEPROXY, registry=DAEMONS, environment=environment).settings.logging.is_on
    environment["SERVING_QUEUEPROXY_LOGGING_REQUEST_LOG_TEMPLATE"] = ""
    settings = load(QUEUEPROXY, registry=DAEMONS, environment=environment).settings
    assert not settings.logging.is_on
    assert changed_variables(settings) == environment


def test_request_log_template_is_validated_and_sets_service_variables() -> None:
    default = RequestLogSettings(enable_request_log=True)
    labels = {"serving.knative.dev/service": "hello", "serving.knative.dev/configuration": "hello"}
    assert default.log_variables(labels) == {}
    own = msgspec.structs.replace(default, request_log_template="{{.Revision.Service}}")
    assert own.log_variables(labels) == {"SERVING_POD_SERVICE": "hello", "SERVING_POD_CONFIGURATION": "hello"}
    environment = {"SERVING_QUEUEPROXY_LOGGING_REQUEST_LOG_TEMPLATE": "{{.Request.Body}}"}
    with pytest.raises(SettingsError, match="there is no field Body"):
        load(QUEUEPROXY, registry=DAEMONS, environment=environment)


def test_metrics_of_revision_become_queue_proxy_variables() -> None:
    variables = load_variables(
        {METRIC: "gauge:vllm:a=5, rps", "prometheus.io/path": "/m", "prometheus.io/port": "9090"}, app_port=8080
    )
    assert variables == {
        "SERVING_POD_GAUGES": '["vllm:a"]',
        "SERVING_POD_METRICS_PATH": "/m",
        "SERVING_POD_METRICS_PORT": "9090",
    }
    assert load_variables({"autoscaling.knative.dev/metric": "queue-length"}, app_port=0) == {
        "SERVING_POD_GAUGES": '["queue_length"]'
    }
    variables = load_variables({"autoscaling.serving.dev/metric": "tokens=9000, gauge:a=1"}, app_port=0)
    assert variables == {"SERVING_POD_TOKENS": "true", "SERVING_POD_GAUGES": '["a"]'}
    loading = "autoscaling.serving.dev/loading-max"
    assert load_variables({loading: "10m"}, app_port=0) == {"SERVING_POD_LOADING_MAX_S": "600"}
    assert load_variables({loading: "soon"}, app_port=0) == {}
    assert load_variables({METRIC: "tokens"}, app_port=0) == {"SERVING_POD_TOKENS": "true"}
    assert load_variables({METRIC: "rps", "prometheus.io/port": "9090"}, app_port=8080) == {}


@pytest.mark.parametrize(("path", "port"), [("m", "x"), ("/a b", "0"), ("/\r\nX: y", "65536"), ("", "8080")])
def test_invalid_metrics_path_and_port_are_omitted(path: str, port: str) -> None:
    annotations = {METRIC: "gauge:a=5", "prometheus.io/path": path, "prometheus.io/port": port}
    assert load_variables(annotations, app_port=8080) == {"SERVING_POD_GAUGES": '["a"]'}


def test_slo_of_revision_becomes_queue_proxy_variable() -> None:
    assert load_variables({"autoscaling.serving.dev/slo": "p95<1s"}, app_port=0) == {"SERVING_POD_SLO": "p95<1s"}
