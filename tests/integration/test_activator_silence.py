"""Pods that accept requests and do not respond, like a stopped process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from serving.core.traffic.ejection import EjectionReport
from tests.eventually import until
from tests.integration.activator_stage import HttpResponse, PodServer, Stage, send_request, staged


class Traffic:
    """A continuous stream of requests."""

    def __init__(self, stage: Stage, **request: str) -> None:
        self.stage = stage
        self.request = request
        self.tasks: list[asyncio.Task[HttpResponse]] = []
        self.is_finished = asyncio.Event()

    async def run(self) -> None:
        """Send a request every 20 ms, without waiting for the previous one."""
        while not self.is_finished.is_set():
            self.tasks.append(asyncio.create_task(send_request(self.stage.public, **self.request)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.is_finished.wait(), 0.02)


@contextlib.asynccontextmanager
async def staged_with_silent_pod(**request: str) -> AsyncIterator[tuple[Stage, Traffic, PodServer]]:
    async with staged(eject_after_silence_s=0.3, report_period_s=0.1) as stage:
        await stage.service(slots=50)
        silent = await stage.pod_seen("p")
        await stage.pod_seen("q")
        silent.gate.clear()
        traffic = Traffic(stage, **request)
        running = asyncio.create_task(traffic.run())
        try:
            yield stage, traffic, silent
        finally:
            traffic.is_finished.set()
            silent.gate.set()
            await running
            await asyncio.gather(*traffic.tasks)


def ejected_count(stage: Stage) -> float:
    """How often pods were ejected for silence."""
    return float(next(iter(stage.activator.ingress.metrics.silent.collect())).samples[0].value)


async def test_requests_move_from_silent_pod_to_responding_pod() -> None:
    async with staged_with_silent_pod() as (stage, traffic, silent):
        await until(lambda: ejected_count(stage))
        (report,) = msgspec.json.decode(stage.activator.ejections({"namespace": "default"}), type=list[EjectionReport])
        assert (report.revision, report.pod, report.is_silent) == ("hello-00001", "p", True)
        assert report.failure_count >= 1
        assert report.until_wall_s is None or report.until_wall_s > report.since_wall_s
        assert stage.activator.ejections({"namespace": "other"}) == "[]"
        traffic.is_finished.set()
        responses = await asyncio.gather(*traffic.tasks)
        assert not silent.gate.is_set()
    assert {(response.status, response.body) for response in responses} == {(200, "q")}


async def test_unrepeatable_requests_stay_on_silent_pod_until_it_continues() -> None:
    async with staged_with_silent_pod(method="POST", body="x") as (stage, traffic, silent):
        await until(lambda: ejected_count(stage))
        traffic.is_finished.set()
        silent.gate.set()
        responses = await asyncio.gather(*traffic.tasks)
        # The pod's responses end its ejection.
        throttler = stage.activator.ingress.router.throttlers.get(("default", "hello-00001"))
        assert throttler is not None
        assert throttler.ejected.addresses == set()
    assert {response.status for response in responses} == {200}
    assert sum(response.body == "p" for response in responses) == len(silent.heads) >= 3
