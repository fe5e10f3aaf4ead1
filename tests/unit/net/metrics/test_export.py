import sys
import threading

import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.otlp import OtlpSettings
from serving.net.metrics.export import ExportOutbox, exporting, span_outbox
from serving.net.metrics.names import COMMON_METRICS
from serving.net.metrics.page import MetricsPage

HERE = OtlpSettings(endpoint="http://127.0.0.1:4318")
EXTRA = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


async def test_export_without_endpoint_imports_no_otlp_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "serving.net.metrics.otlp", raising=False)
    async with (
        exporting(OtlpSettings(), MetricsPage(COMMON_METRICS), service="a"),
        span_outbox(OtlpSettings(), service="a") as send,
    ):
        assert send is None
    assert "serving.net.metrics.otlp" not in sys.modules


async def test_missing_otel_extra_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "serving.net.metrics.otlp", raising=False)
    monkeypatch.setitem(sys.modules, EXTRA, None)
    with pytest.raises(SettingsError, match=r"OpenTelemetry is not installed.*pip install 'serving\[otel\]'"):
        async with exporting(HERE, MetricsPage(COMMON_METRICS), service="a"):
            pass
    with pytest.raises(SettingsError, match=r"serving\[otel\]"):
        async with span_outbox(HERE, service="a"):
            pass


async def test_other_missing_module_is_not_reported_as_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "serving.net.metrics.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "serving.net.metrics.spans", None)
    with pytest.raises(ModuleNotFoundError, match=r"serving\.net\.metrics\.spans"):
        async with span_outbox(HERE, service="a"):
            pass


async def test_endpoint_without_scheme_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"'localhost:4318' is not a URL.*http://127\.0\.0\.1:4318"):
        async with span_outbox(OtlpSettings(endpoint="localhost:4318"), service="a"):
            pass


def test_items_are_sent_in_ordered_batches_by_another_thread() -> None:
    sent: list[list[int]] = []
    threads: set[int] = set()

    def send(batch: list[int]) -> None:
        sent.append(batch)
        threads.add(threading.get_ident())

    outbox = ExportOutbox("numbers", send, period_s=3600, items_max=100, batch_max=2)
    for number in range(5):
        outbox.add(number)
    outbox.close(10)
    assert sent == [[0, 1], [2, 3], [4]]
    assert threading.get_ident() not in threads


def test_full_outbox_drops_oldest_item() -> None:
    sent: list[int] = []
    outbox = ExportOutbox("numbers", sent.extend, period_s=3600, items_max=2, batch_max=10)
    for number in range(5):
        outbox.add(number)
    assert outbox.dropped_count == 3
    outbox.close(10)
    assert sent == [3, 4]


def test_failed_batch_is_logged_and_next_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    sent, done = [], threading.Event()

    def send(batch: list[int]) -> None:
        if batch == [1]:
            raise RuntimeError("no receiver")
        sent.extend(batch)
        done.set()

    outbox = ExportOutbox("numbers", send, period_s=0.001, items_max=10, batch_max=1)
    outbox.add(1)
    outbox.add(2)
    assert done.wait(60)
    outbox.close(10)
    assert sent == [2]
    assert [record.message for record in caplog.records] == ["otlp.failed"]


def test_add_and_close_return_while_receiver_is_silent() -> None:
    sent: list[int] = []
    waiting, resume = threading.Event(), threading.Event()

    def send(batch: list[int]) -> None:
        waiting.set()
        resume.wait(60)
        sent.extend(batch)

    outbox = ExportOutbox("numbers", send, period_s=0.001, items_max=10, batch_max=1)
    outbox.add(1)
    assert waiting.wait(60)
    outbox.add(2)
    outbox.close(0.01)
    assert sent == []
    resume.set()
    outbox.close(60)
    assert sent == [1, 2]
