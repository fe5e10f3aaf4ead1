from serving.net.aio.clock import now_s, stamp, wall_s
from tests.virtual_time import run_virtually


def test_a_stamp_is_as_the_api_writes_it() -> None:
    assert stamp(0.9) == "1970-01-01T00:00:00Z"
    assert stamp(1_795_231_800) == "2026-11-21T03:30:00Z"


def test_a_stamp_of_now_is_of_this_century() -> None:
    assert stamp() >= "2026"
    assert wall_s() > 1_700_000_000


def test_the_time_of_decisions_is_the_loops() -> None:
    async def run() -> float:
        return now_s()

    assert run_virtually(run()) == 0.0
