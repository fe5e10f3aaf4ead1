import asyncio

from serving.net.aio.clock import now_s
from serving.net.aio.periodic import every, next_beat, until_beat_s, wait_for
from tests.virtual_time import pass_s, run_virtually


async def beats(period_s: float, *, until_s: float, cost_s: float = 0.0, is_shared: bool = False) -> list[float]:
    """The start times of a beat; each takes ``cost_s``."""
    stop, seen = asyncio.Event(), []

    async def beat() -> None:
        seen.append(now_s())
        await pass_s(cost_s)

    asyncio.get_running_loop().call_at(until_s, stop.set)
    await every(period_s, beat, stop=stop, on_error=lambda _: None, is_shared=is_shared)
    return [round(at_s, 6) for at_s in seen]


def test_beats_start_immediately_and_repeat_each_period() -> None:
    assert run_virtually(beats(2.0, until_s=7.0)) == [0.0, 2.0, 4.0, 6.0]


def test_duration_of_a_beat_does_not_shift_the_next() -> None:
    assert run_virtually(beats(2.0, until_s=7.0, cost_s=0.5)) == [0.0, 2.0, 4.0, 6.0]


def test_missed_beats_are_skipped() -> None:
    assert run_virtually(beats(2.0, until_s=11.0, cost_s=5.0)) == [0.0, 6.0]


def test_tasks_started_at_different_times_share_beats() -> None:
    async def chore(delay_s: float) -> list[float]:
        await pass_s(delay_s)
        results = []
        for _ in range(3):
            await next_beat(2.0)
            results.append(now_s())
        return results

    async def shared(delay_s: float) -> list[float]:
        await pass_s(delay_s)
        return await beats(2.0, until_s=7.0, is_shared=True)

    async def run() -> list[list[float]]:
        return list(await asyncio.gather(chore(0.3), chore(0.8), shared(0.6)))

    assert run_virtually(run()) == [[2.0, 4.0, 6.0], [2.0, 4.0, 6.0], [0.6, 2.0, 4.0, 6.0]]


def test_next_shared_beat_is_at_least_half_a_period_away() -> None:
    async def run() -> list[float]:
        results = []
        for at_s in (0.0, 0.9, 1.2, 1.999):
            await pass_s(at_s - now_s())
            results.append(round(until_beat_s(2.0), 6))
        return results

    assert run_virtually(run()) == [2.0, 1.1, 2.8, 2.001]


def test_error_of_a_beat_is_reported_and_beats_continue() -> None:
    errors: list[str] = []

    async def run() -> int:
        stop, count = asyncio.Event(), 0

        async def beat() -> None:
            nonlocal count
            count += 1
            if count == 3:
                stop.set()
            raise ValueError(str(count))

        await every(1.0, beat, stop=stop, on_error=lambda error: errors.append(str(error)))
        return count

    assert run_virtually(run()) == 3
    assert errors == ["1", "2", "3"]


def test_wait_for_returns_at_event_or_deadline() -> None:
    async def run() -> tuple[bool, float, bool, float]:
        event = asyncio.Event()
        came = await wait_for(event, until_s=3.0)
        at_s = now_s()
        asyncio.get_running_loop().call_at(4.0, event.set)
        return came, at_s, await wait_for(event, until_s=9.0), now_s()

    assert run_virtually(run()) == (False, 3.0, True, 4.0)
