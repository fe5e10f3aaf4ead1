"""Requests at a high rate for a service at zero that starts ten pods at once.

One start of the same app alone, measured a moment before, is the reference: on a slow machine the first response may take twice as
long as it did.
"""

import asyncio
import time

import msgspec

from bench.parts.fault_stage import COLD, FaultStage, deploy
from bench.parts.steady import Load, percentile_ms

_SERVICE, _PODS, _SLOTS = "storm", 10, 10
_ZERO_WITHIN_S = 60.0
FIRST_RESPONSE_MAX_S, PODS_WITHIN_S, OTHERS_P99_MAX_MS = 0.7, 5.0, 250.0
"""The bounds of the contract: the first response, the pods that the load needs, and the requests of other services."""
_LONE_STARTS_MAX = 2.0

# A request that takes longer than this waits.
_WAITED_S = 0.5


class StartStorm(msgspec.Struct, frozen=True, kw_only=True):
    """One storm, in seconds from its first request. ``pods_s`` is when each pod gave its first answer.

    ``lone_start_s`` is the time of one request from zero without a storm. ``backlog_gone_s`` is when the last request came that
    had to wait. ``others_p99_ms`` is of the requests for another service meanwhile.
    """

    rate: float
    sent: int
    failed: int
    lone_start_s: float
    first_response_s: float
    waited_max_s: float
    backlog_gone_s: float
    pods_s: tuple[float, ...]
    others_p99_ms: float

    def broken_bounds(self) -> list[str]:
        """The bounds that were broken, each with the measurement."""
        broken = []
        if self.failed:
            broken.append(f"{self.failed} of {self.sent} requests failed; none may")
        first_max_s = max(FIRST_RESPONSE_MAX_S, _LONE_STARTS_MAX * self.lone_start_s)
        if self.first_response_s > first_max_s:
            bound = f"at most {FIRST_RESPONSE_MAX_S:g} s, or {_LONE_STARTS_MAX:g} times the {self.lone_start_s:g} s of a start alone"
            broken.append(f"the first response came after {self.first_response_s:g} s; {bound}")
        # Pods that the load needs respond; the others are removed before they start.
        if self.backlog_gone_s > PODS_WITHIN_S:
            broken.append(f"requests waited for pods until {self.backlog_gone_s:g} s; at most {PODS_WITHIN_S:g} s")
        if not self.others_p99_ms <= OTHERS_P99_MAX_MS:
            broken.append(f"other services had a p99 of {self.others_p99_ms:g} ms; at most {OTHERS_P99_MAX_MS:g} ms")
        return broken


class _StormLoad(Load):
    """Requests with the process of each answer."""

    def __init__(self, port: int, host: str) -> None:
        super().__init__(port, host)
        self.first_responses_s: dict[str, float] = {}

    async def send_request(self, path: str = "/", *, method: str = "GET") -> tuple[str, str]:
        """As the base class."""
        status, body = await super().send_request(path, method=method)
        if status == "200":
            self.first_responses_s.setdefault(body, time.monotonic())
        return status, body


async def start_storm(stage: FaultStage, *, rate: float, seconds: float) -> StartStorm:
    """Let the storm come, and look until it is over."""
    system = stage.system
    scaling = ("--initial-scale", "0", "--annotate", f"autoscaling.knative.dev/activation-scale={_PODS}")
    await asyncio.to_thread(deploy, system, *scaling, name=_SERVICE, pods=0, slots=_SLOTS)
    await asyncio.to_thread(system.until_zero, COLD, _ZERO_WITHIN_S)
    lone = Load(system.port, f"{COLD}.default.localhost")
    await lone.request(time.monotonic())
    load, begin_s = _StormLoad(system.port, f"{_SERVICE}.default.localhost"), time.monotonic()
    sending = asyncio.create_task(load.requests(rate))
    await asyncio.sleep(seconds)
    sending.cancel()
    await load.finish()
    others = [one for one in stage.load.since(begin_s) if one.due_s < begin_s + seconds]
    await asyncio.gather(lone.close(), load.close())
    waited = [one for one in load.observed if one.took_s > _WAITED_S]
    responses_s = sorted(at_s - begin_s for at_s in load.first_responses_s.values())
    return StartStorm(
        rate=rate,
        sent=len(load.observed),
        failed=sum(one.status != "200" for one in load.observed),
        lone_start_s=round(lone.observed[0].took_s, 2),
        first_response_s=round(min(responses_s, default=seconds), 2),
        waited_max_s=round(max(one.took_s for one in load.observed), 2),
        backlog_gone_s=round(max((one.due_s - begin_s for one in waited), default=0.0), 2),
        pods_s=tuple(round(at_s, 2) for at_s in responses_s),
        others_p99_ms=round(percentile_ms(others, 99)),
    )
