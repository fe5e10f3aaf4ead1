"""The ticker runs a router's ticks when they are due."""

import asyncio

from serving.activator.io.forwarding import Ticker
from serving.activator.queueing.outcome import RoutingOutcome
from serving.activator.queueing.router import RequestRouter
from serving.core.settings.activator import ActivatorSettings
from tests.virtual_time import pass_s, run_virtually

SETTINGS = ActivatorSettings(queue_wait_max_s=1.5)


def test_a_failed_tick_does_not_stop_later_ticks() -> None:
    rejected: list[str] = []
    failures = [ValueError("no such pod")]

    def apply(outcome: RoutingOutcome[str]) -> None:
        rejected.extend(rejection.request for rejection in outcome.rejections)
        if failures:
            raise failures.pop()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))
        router = RequestRouter[str](SETTINGS, random=lambda: 0.0)
        ticker = Ticker(router, apply=apply, clock=loop.time)
        router.arrive(("default", "hello-00001"), "first", loop.time())
        ticker.schedule()
        await pass_s(2.0)
        ticker.close()

    errors: list[BaseException] = []
    run_virtually(scene())
    assert rejected == ["first"]
    assert [str(error) for error in errors] == ["no such pod"]
