"""Large bodies at the local API leave the loop to other requests."""

import asyncio

import pytest

from serving.aio.clock import now_s
from serving.home.apiserver.guard import LargeBodies

LARGE = 2**20


async def test_a_large_body_waits_as_long_as_the_one_before_took_and_a_small_one_does_not() -> None:
    bodies, seen, began_s = LargeBodies(), [], dict[str, float]()

    async def handle(name: str, byte_count: int) -> None:
        async with bodies.turn(byte_count):
            began_s[name] = now_s()
            seen.append(name)
            await asyncio.sleep(0.05 if byte_count == LARGE else 0)

    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            group.create_task(handle(name, LARGE))
        await asyncio.sleep(0)
        group.create_task(handle("small", 100))
    assert seen == ["first", "small", "second"]
    assert began_s["second"] - began_s["first"] >= 2 * 0.05 - 0.01


async def test_a_large_body_that_is_refused_gives_its_turn_back() -> None:
    bodies = LargeBodies()
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            async with asyncio.timeout(60), bodies.turn(LARGE):
                raise ValueError("refused")
