"""One small service under ten times its capacity: answers, refusals, and how fast."""

import asyncio
import time

import msgspec

from bench.parts.fault_stage import deploy
from bench.parts.steady import Load, percentile_ms
from bench.parts.system import System

# The service that is overloaded.
_SLOTS, _WORK_S = 4, 0.1
_CAPACITY_S = 4.0
_RECOVERED_FACTOR, _RECOVERY_MAX_S, _GIVE_UP_S = 3.0, 10.0, 60.0
_REFUSAL_MAX_MS, _GOODPUT_MIN_RATIO = 100.0, 0.9


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a second of the capacity, refusals, and the time until it was normal again."""

    capacity_per_s: float
    responses_per_s: float
    refused: int
    other: int
    refusal_p99_ms: float
    recovered_s: float
    daemons_mib: int

    def broken_bounds(self) -> list[str]:
        """The bounds that were broken, each with the measurement."""
        broken = []
        responses_min = _GOODPUT_MIN_RATIO * self.capacity_per_s
        if self.responses_per_s < responses_min:
            broken.append(f"{self.responses_per_s:g} responses a second; at least {responses_min:g}")
        if not self.refusal_p99_ms <= _REFUSAL_MAX_MS:
            broken.append(f"refusals had a p99 of {self.refusal_p99_ms:g} ms; at most {_REFUSAL_MAX_MS:g} ms")
        if self.recovered_s > _RECOVERY_MAX_S:
            broken.append(f"normal again after {self.recovered_s:g} s; at most {_RECOVERY_MAX_S:g} s")
        if self.other:
            broken.append(f"{self.other} requests failed otherwise than by 503; none may")
        return broken


async def _capacity(load: Load) -> float:
    """Answers a second to twice as many clients as there are slots."""
    begin_s = time.monotonic()

    async def client() -> None:
        while time.monotonic() < begin_s + _CAPACITY_S:
            await load.request(time.monotonic())

    await asyncio.gather(*(client() for _ in range(_SLOTS * 2)))
    capacity = round(len(load.observed) / (time.monotonic() - begin_s), 1)
    load.observed.clear()
    return capacity


async def overload(system: System, *, seconds: float) -> Overload:
    """Send ten times what one small service can take."""
    one = ("--max-scale", "1")
    await asyncio.to_thread(deploy, system, *one, name="small", pods=1, slots=_SLOTS, work_s=_WORK_S)
    load = Load(system.port, "small.default.localhost")
    capacity = await _capacity(load)
    begin_s = time.monotonic()
    sending = asyncio.create_task(load.requests(capacity * 10))
    await asyncio.sleep(seconds)
    sending.cancel()
    end_s = time.monotonic()
    while True:
        probe_s = time.monotonic()
        await load.request(probe_s)
        last = load.observed[-1]
        if (last.status == "200" and last.took_s < _WORK_S * _RECOVERED_FACTOR) or probe_s > end_s + _GIVE_UP_S:
            break
    await load.close()
    observed = load.observed
    refused = [one for one in observed if one.status == "503"]
    answered = [one for one in observed if one.status == "200" and one.due_s + one.took_s < end_s]
    return Overload(
        capacity_per_s=capacity,
        responses_per_s=round(len(answered) / (end_s - begin_s), 1),
        refused=len(refused),
        other=sum(one.status not in {"200", "503"} for one in observed),
        # A machine that sends too slowly to be overloaded refuses nothing.
        refusal_p99_ms=round(percentile_ms(refused, 99)) if refused else 0.0,
        recovered_s=round(probe_s - end_s, 1),
        daemons_mib=system.daemons_mib(),
    )
