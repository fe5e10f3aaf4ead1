"""An app of which one thing is scarce: cpu, memory, or nothing but time.

``BOUND`` is "cpu", "memory" or "io". A request takes ``CPU_S`` of cpu, holds ``MIB`` for ``WAIT_S``, or waits for
``WAIT_S``. One thread does all the cpu, and keeps to ``CPU_LIMIT`` of a core, as a cgroup would make it: processes of
one machine have none.
"""

import asyncio
import os
import time

BOUND = os.environ.get("BOUND", "io")
WAIT_S = float(os.environ.get("WAIT_S", "1"))
CPU_S = float(os.environ.get("CPU_S", "0.01"))
CPU_LIMIT = float(os.environ.get("CPU_LIMIT", "0.1"))
MIB = int(os.environ.get("MIB", "12"))
_PAGE = 4096


class Core:
    """A share of one core, which blocks the whole app until it allows more."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def work(self) -> None:
        """Take ``CPU_S`` of cpu."""
        time.sleep(max(0.0, self._free_s - time.monotonic()))
        self._free_s = time.monotonic() + CPU_S / CPU_LIMIT
        until_s = time.process_time() + CPU_S
        while time.process_time() < until_s:
            pass


CORE = Core()


async def work() -> None:
    """One request."""
    if BOUND == "cpu":
        CORE.work()
        return
    result = bytearray((MIB if BOUND == "memory" else 0) << 20)
    # Memory that is not touched is not held.
    result[::_PAGE] = b"x" * len(result[::_PAGE])
    await asyncio.sleep(WAIT_S)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, one after the other, until it ends."""
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            await work()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Listen until ended."""
    server = await asyncio.start_server(serve, "127.0.0.1", int(os.environ.get("PORT", "8080")), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
