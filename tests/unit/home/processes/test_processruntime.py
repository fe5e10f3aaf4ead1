"""ProcessRuntime's connection to a fake template that only records orders."""

import asyncio
from pathlib import Path

import pytest

from serving.home.processes import processruntime
from serving.home.processes.orders import Inventory, KeepNote, Lines, Order, StartProcess, encode, read_order
from serving.home.processes.processruntime import ProcessRuntime
from tests.eventually import until


def start(pod: str, value: str) -> StartProcess:
    return StartProcess(pod=pod, name="app", environment={"A": value}, log="/l", arguments=("run",))


async def test_oversized_order_fails_alone_and_connection_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processruntime, "LINE_BYTES_MAX", 1000)
    orders: list[Order] = []
    connection_count = 0

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connection_count
        connection_count += 1
        writer.write(encode(Inventory(pods=[])))
        lines = Lines()
        while piece := await reader.read(65536):
            orders.extend(map(read_order, lines.feed(piece)))
        writer.close()

    path = tmp_path / "template.sock"
    server = await asyncio.start_unix_server(listen, path)
    runtime = ProcessRuntime(path)
    running = asyncio.create_task(runtime.run())
    try:
        await runtime.connected.wait()
        too_long = runtime.start(start("1", "x" * 2000))
        with pytest.raises(OSError, match=r"its order has 2.* bytes; expected at most 1000"):
            await too_long.started
        runtime.store_note("2", {"note": "x" * 2000})
        right = start("3", "b")
        runtime.start(right)
        await until(lambda: bool(orders))
        assert (orders, connection_count) == ([right], 1)
        assert not any(isinstance(order, KeepNote) for order in orders)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.close()
        await server.wait_closed()
