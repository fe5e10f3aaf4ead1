"""Sends back each message."""

import asyncio
import os

from websockets.asyncio.server import serve


async def echo(connection):
    """Send each message of ``connection`` back."""
    async for message in connection:
        await connection.send(f"echo: {message}")


async def main():
    """Serve until a signal ends the process."""
    async with serve(echo, "127.0.0.1", int(os.environ["PORT"])) as server:
        await server.serve_forever()


asyncio.run(main())
