import sys

import pytest

from serving.metrics.export import exporting, span_outbox
from serving.metrics.names import COMMON_METRICS
from serving.metrics.page import MetricsPage
from serving.model.errors import SettingsError
from serving.settings.otlp import OtlpSettings

HERE = OtlpSettings(endpoint="http://127.0.0.1:4318")
EXTRA = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


async def test_without_an_endpoint_nothing_is_loaded_and_nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "serving.metrics.otlp", raising=False)
    async with (
        exporting(OtlpSettings(), MetricsPage(COMMON_METRICS), service="a"),
        span_outbox(OtlpSettings(), service="a") as send,
    ):
        assert send is None
    assert "serving.metrics.otlp" not in sys.modules


async def test_a_missing_extra_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "serving.metrics.otlp", raising=False)
    monkeypatch.setitem(sys.modules, EXTRA, None)
    with pytest.raises(SettingsError, match=r"OpenTelemetry is not installed.*pip install 'serving\[otel\]'"):
        async with exporting(HERE, MetricsPage(COMMON_METRICS), service="a"):
            pass
    with pytest.raises(SettingsError, match=r"serving\[otel\]"):
        async with span_outbox(HERE, service="a"):
            pass


async def test_another_missing_module_is_not_called_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "serving.metrics.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "serving.metrics.spans", None)
    with pytest.raises(ModuleNotFoundError, match=r"serving\.metrics\.spans"):
        async with span_outbox(HERE, service="a"):
            pass


async def test_an_endpoint_that_is_no_url_is_told() -> None:
    with pytest.raises(SettingsError, match=r"'localhost:4318' is no URL.*http://127\.0\.0\.1:4318"):
        async with span_outbox(OtlpSettings(endpoint="localhost:4318"), service="a"):
            pass
