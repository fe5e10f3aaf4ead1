"""Requests that wait for an upstream connection of the pool, over real sockets."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http1.pool import PlainConnector, Pool, UpstreamProtocol
from serving.net.proxy.http1.upstream import Address, Upstream
from serving.net.proxy.http2.upstream import Http2Pool
from tests.eventually import until
from tests.unit.net.proxy.waiting import Waiting

_MANY = 600


async def _listening() -> asyncio.Server:
    """A server that accepts, and sends nothing."""
    return await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)


class _GatedConnector(PlainConnector):
    """Opens no connection until ``gate`` is set."""

    attempts_max = 3

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.count = 0

    async def connect(self, make: Callable[[], UpstreamProtocol], address: Address) -> UpstreamProtocol:
        self.count += 1
        await self.gate.wait()
        return await super().connect(make, address)


class _Stage:
    """A pool, its connector, and a server."""

    def __init__(self, address: Address, *, connect_max_s: float = 60.0) -> None:
        self.address = address
        self.pool = Pool(HttpSettings(upstream_connect_max_s=connect_max_s), clock=time.monotonic)
        self.connector = _GatedConnector()
        self.pool.connector = self.connector
        self.waiters: list[Waiting] = []

    def request(self, *, new: bool = False) -> Waiting:
        """A request that needs a connection."""
        waiter = Waiting()
        self.waiters.append(waiter)
        self.pool.connect(self.address, waiter, new=new)
        return waiter

    async def used(self) -> Upstream:
        """A connection in use by a request; the next connection attempts wait for the gate."""
        self.connector.gate.set()
        waiter = self.request()
        await until(lambda: waiter.upstream is not None)
        self.connector.gate.clear()
        self.connector.count = 0
        assert isinstance(waiter.upstream, Upstream)
        return waiter.upstream

    def close(self) -> None:
        """Close all connections."""
        self.pool.close()
        for waiter in self.waiters:
            if waiter.upstream is not None:
                waiter.upstream.drop()

    async def begun(self, count: int) -> None:
        """Wait until `count` connection attempts have begun."""
        await until(lambda: self.connector.count >= count)


@pytest.fixture
async def stage() -> AsyncIterator[_Stage]:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(await _listening())
        new_stage = _Stage(server.sockets[0].getsockname())
        yield new_stage
        new_stage.connector.gate.set()
        await until(lambda: "connecting 0" in repr(new_stage.pool))
        new_stage.close()


async def test_request_uses_first_free_connection(stage: _Stage) -> None:
    upstream = await stage.used()
    first, second = stage.request(), stage.request()
    await stage.begun(2)
    stage.pool.release(upstream)
    assert (first.upstream, second.upstream) == (upstream, None)
    stage.connector.gate.set()
    await until(lambda: second.upstream is not None)
    # The connection that was opened for the first request stays idle for the next one.
    await until(lambda: stage.pool.idle_count == 1)
    request_carrier = stage.pool.acquire(stage.address)
    assert request_carrier is not None
    assert request_carrier not in (upstream, second.upstream)
    request_carrier.drop()


async def test_retry_uses_only_a_new_connection(stage: _Stage) -> None:
    upstream = await stage.used()
    retry, other = stage.request(new=True), stage.request()
    stage.pool.release(upstream)
    assert (retry.upstream, other.upstream) == (None, upstream)
    stage.connector.gate.set()
    await until(lambda: retry.upstream is not None)
    assert retry.upstream is not None
    assert not retry.upstream.is_reused


async def test_requests_of_disconnected_clients_receive_no_connection(stage: _Stage) -> None:
    upstream = await stage.used()
    remaining = [stage.request() for _ in range(_MANY)]
    for waiter in remaining:
        waiter.is_waiting = False
    last = stage.request()
    stage.pool.release(upstream)
    assert last.upstream is upstream
    assert all(waiter.upstream is None and waiter.error is None for waiter in remaining)


async def test_pool_opens_at_most_three_connections_at_a_time(stage: _Stage) -> None:
    waiters = [stage.request() for _ in range(10)]
    await stage.begun(3)
    assert stage.connector.count == 3
    stage.connector.gate.set()
    await until(lambda: all(waiter.upstream is not None for waiter in waiters))
    assert len({id(waiter.upstream) for waiter in waiters}) == 10


async def test_waiting_requests_fail_with_the_connection_attempt_that_times_out() -> None:
    stage = _Stage(("127.0.0.1", 9), connect_max_s=0.2)
    waiters = [stage.request() for _ in range(10)]
    await until(lambda: all(waiter.error is not None for waiter in waiters))
    assert {type(waiter.error) for waiter in waiters} == {TimeoutError}
    assert stage.connector.count == 3


async def test_each_refused_connection_attempt_fails_one_request() -> None:
    listener = await _listening()
    address = listener.sockets[0].getsockname()
    listener.close()
    await listener.wait_closed()
    stage = _Stage(address)
    stage.connector.gate.set()
    waiters = [stage.request() for _ in range(10)]
    await until(lambda: all(waiter.error is not None for waiter in waiters))
    assert {type(waiter.error) for waiter in waiters} == {ConnectionRefusedError}
    assert stage.connector.count == 10


@pytest.mark.parametrize("make", [Pool, Http2Pool])
async def test_invalid_upstream_address_fails_its_requests(make: type[Pool]) -> None:
    pool, waiter = make(HttpSettings(), clock=time.monotonic), Waiting()
    pool.connect(("a..example", 80), waiter)
    await until(lambda: waiter.error)
    assert "invalid address" in str(waiter.error)
    pool.close()
