"""The activator records failed, slow and sampled requests: the failing component, the reason, and the time per phase."""

import asyncio

import msgspec
import pytest

from serving.core.traffic.requesthistory import RequestRecord, RequestReport
from serving.net.proxy.http1.rendering import render_pod_wait, render_proxy_status
from tests.eventually import until
from tests.integration.activator_stage import Stage, send_request, staged

NO_SLOT = b"HTTP/1.1 503 Service Unavailable\r\n%bContent-Length: 0\r\n\r\n" % render_proxy_status(
    b"queue-proxy", b"waited too long for a free slot"
)


def report_of(stage: Stage) -> RequestReport:
    text = stage.activator.ingress.recorder.reports({"namespace": "default", "name": "hello-00001"})
    (report,) = msgspec.json.decode(text, type=list[RequestReport])
    return report


async def last_failed(stage: Stage) -> RequestRecord:
    await until(lambda: stage.activator.ingress.recorder.history.count and report_of(stage).failed)
    return report_of(stage).failed[-1]


async def test_app_error_is_recorded_with_pod_and_trace() -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.response = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
        trace = "0af7651916cd43dd8448eb211c80319c"
        await send_request(
            stage.public, "/pay?card=1234", method="POST", headers=[f"traceparent: 00-{trace}-00f067aa0ba902b7-01"]
        )
        request_record = await last_failed(stage)
        report = report_of(stage)
    assert (
        request_record.method,
        request_record.path,
        request_record.status,
        request_record.failed_by,
        request_record.why,
    ) == (
        "POST",
        "/pay",
        500,
        "app",
        "the app responded 500",
    )
    assert (request_record.pod, request_record.trace_id, request_record.is_cold, request_record.revision) == (
        "p",
        trace,
        False,
        "hello-00001",
    )
    assert (
        request_record.waited_s + request_record.start_s + request_record.queued_s + request_record.app_s
        == pytest.approx(request_record.duration_s)
    )
    assert [(cause.failed_by, cause.status, cause.count) for cause in report.errors] == [("app", 500, 1)]
    assert report.sampled == report.slow == report.failed


async def test_query_string_is_recorded_if_enabled() -> None:
    async with staged(record_queries=True) as stage:
        await stage.service()
        await stage.pod_seen("p")
        await send_request(stage.public, "/find?q=1")
        await until(lambda: stage.activator.ingress.recorder.history.count)
        assert report_of(stage).sampled[0].path == "/find?q=1"


async def test_long_path_is_truncated_in_record() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        await send_request(stage.public, f"/{'x' * 5000}")
        path = report_of(stage).sampled[0].path
    assert path == f"/{'x' * 196}..."


async def test_queue_proxy_rejection_is_attributed_to_queue_proxy() -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.response = NO_SLOT
        await send_request(stage.public)
        request_record = await last_failed(stage)
    assert (request_record.failed_by, request_record.why) == (
        "queue-proxy",
        "waited too long for a free slot (from the queue-proxy)",
    )


async def test_wait_in_pod_is_not_counted_as_app_time() -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        # A reported wait is limited to the duration of the request.
        pod.response = b"HTTP/1.1 200 OK\r\n%bContent-Length: 0\r\n\r\n" % render_pod_wait(5000)
        await send_request(stage.public)
        await until(lambda: stage.activator.ingress.recorder.history.count)
        request_record = report_of(stage).sampled[0]
    assert request_record.queued_s == pytest.approx(request_record.duration_s - request_record.waited_s)
    assert request_record.app_s == 0


async def test_client_disconnect_is_recorded_as_failed_by_client() -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.gate.clear()
        leaving = asyncio.create_task(send_request(stage.public, "/slow"))
        await until(lambda: pod.running_count)
        leaving.cancel()
        request_record = await last_failed(stage)
    assert (request_record.failed_by, request_record.status, request_record.path) == ("client", 0, "/slow")
    assert request_record.why == "the client left before the app responded"


async def test_timeout_record_distinguishes_waiting_from_running_in_pod() -> None:
    async with staged() as stage:
        await stage.service(timeoutSeconds=1)
        assert (await send_request(stage.public)).status == 504
        waiting = await last_failed(stage)
        pod = await stage.pod_seen("p")
        pod.gate.clear()
        assert (await send_request(stage.public)).status == 504
        await until(lambda: len(report_of(stage).failed) == 2)
        running = report_of(stage).failed[-1]
    assert (waiting.failed_by, waiting.pod, waiting.is_cold) == ("activator", "", True)
    assert waiting.start_s == pytest.approx(waiting.duration_s)
    assert (running.failed_by, running.pod, running.is_cold) == ("app", "p", False)
    assert running.app_s > 0.5


async def test_cold_requests_are_recorded_with_start_time_of_their_pod() -> None:
    async with staged() as stage:
        await stage.service(state="Reserve")
        cold = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 1)
        later = asyncio.create_task(send_request(stage.public, "/later"))
        await until(lambda: stage.level == 2)
        await stage.pod("p")
        await asyncio.gather(cold, later)
        await until(lambda: len(report_of(stage).slow) == 2)
        request_records = report_of(stage).slow
    assert {request_record.path: request_record.is_cold for request_record in request_records} == {
        "/": True,
        "/later": True,
    }
    for request_record in request_records:
        assert request_record.start_s > 0
        assert (
            request_record.waited_s + request_record.start_s + request_record.queued_s + request_record.app_s
            == pytest.approx(request_record.duration_s)
        )


async def test_full_queue_is_recorded_as_failed_by_activator() -> None:
    async with staged(queue_depth_max=1) as stage:
        await stage.service()
        waiting = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 1)
        assert (await send_request(stage.public)).status == 503
        request_record = await last_failed(stage)
        await stage.pod("p")
        await waiting
    assert request_record.failed_by == "activator"
    assert "queue" in request_record.why


async def test_request_that_lost_two_pods_is_recorded_as_failed_by_app() -> None:
    async with staged() as stage:
        await stage.service()
        for name in ("p", "q"):
            pod = await stage.pod_seen(name)
            pod.dies_at_once = True
        assert (await send_request(stage.public)).status == 502
        request_record = await last_failed(stage)
    assert request_record.failed_by == "app"
    assert request_record.why.endswith("the app or its pod ended")


async def test_recording_is_off_if_maximum_is_zero() -> None:
    async with staged(recorded_requests_max=0) as stage:
        await stage.service()
        await stage.pod_seen("p")
        await send_request(stage.public)
        await until(lambda: not stage.level)
        assert stage.activator.ingress.recorder.history.count == 0
