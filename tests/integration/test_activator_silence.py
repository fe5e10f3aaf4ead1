"""Pods that accept requests and stay silent, like a stopped process."""

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
        self.is_over = asyncio.Event()

    async def run(self) -> None:
        """Send a request each 20 ms, without a wait for the one before."""
        while not self.is_over.is_set():
            self.tasks.append(asyncio.create_task(send_request(self.stage.public, **self.request)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.is_over.wait(), 0.02)


@contextlib.asynccontextmanager
async def one_of_two_hangs(**request: str) -> AsyncIterator[tuple[Stage, Traffic, PodServer]]:
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
            traffic.is_over.set()
            silent.gate.set()
            await running
            await asyncio.gather(*traffic.tasks)


def ejected_count(stage: Stage) -> float:
    """How often a pod was ejected for silence."""
    return float(next(iter(stage.activator.ingress.metrics.silent.collect())).samples[0].value)


async def test_requests_move_from_a_silent_pod_to_one_that_answers() -> None:
    async with one_of_two_hangs() as (stage, traffic, silent):
        await until(lambda: ejected_count(stage))
        (report,) = msgspec.json.decode(stage.activator.ejections({"namespace": "default"}), type=list[EjectionReport])
        assert (report.revision, report.pod, report.is_silent) == ("hello-00001", "p", True)
        assert report.failure_count >= 1
        assert report.until_wall_s is None or report.until_wall_s > report.since_wall_s
        assert stage.activator.ejections({"namespace": "other"}) == "[]"
        traffic.is_over.set()
        responses = await asyncio.gather(*traffic.tasks)
        assert not silent.gate.is_set()
    assert {(response.status, response.body) for response in responses} == {(200, "q")}


async def test_what_must_not_be_repeated_stays_and_is_answered_when_the_pod_continues() -> None:
    async with one_of_two_hangs(method="POST", body="x") as (stage, traffic, silent):
        await until(lambda: ejected_count(stage))
        traffic.is_over.set()
        silent.gate.set()
        responses = await asyncio.gather(*traffic.tasks)
        # Its answers end the pause.
        throttler = stage.activator.ingress.router.throttlers.get(("default", "hello-00001"))
        assert throttler is not None
        assert throttler.ejected.addresses == set()
    assert {response.status for response in responses} == {200}
    assert sum(response.body == "p" for response in responses) == len(silent.heads) >= 3
