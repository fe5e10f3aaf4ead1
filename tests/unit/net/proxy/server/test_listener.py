"""The listener: the time limits of its connections."""

import asyncio

import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.server.listener import HttpServer
from tests.virtual_time import pass_s, run_virtually


class LimitedClient:
    """A connection whose time limit expires at 10 s; ``error`` is what its check raises then."""

    is_idle = False

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_expired = False
        self.is_cut = False

    def wind_down(self) -> None:
        pass

    def close_if_idle(self) -> None:
        pass

    def cut(self) -> bool:
        self.is_cut = True
        return True

    def check(self, now_s: float) -> float:
        if now_s < 10.0 or self.is_expired:
            return 10.0 if now_s < 10.0 else float("inf")
        if self.error is not None and not self.is_cut:
            raise self.error
        self.is_expired = True
        return float("inf")


def test_failed_check_cuts_its_connection_and_others_keep_time_limits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing, other = LimitedClient(ValueError("no such phase")), LimitedClient()

    async def scene() -> None:
        server = HttpServer(HttpSettings(), clock=asyncio.get_running_loop().time)
        for client in (failing, other):
            assert server.opened(client, "10.0.0.1") is None
        server.wake_by(10.0)
        await pass_s(11.0)
        assert (failing.is_cut, other.is_expired, other.is_cut) == (True, True, False)
        assert "no such phase" in caplog.text
        later = LimitedClient()
        server.opened(later, "10.0.0.1")
        server.wake_by(20.0)
        await pass_s(10.0)
        assert later.is_expired

    run_virtually(scene())
