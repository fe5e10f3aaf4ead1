"""Origins that report how they read a request, each with the parser of another server.

    python echo.py NAME PORT

The response has no body, and ``X-Echo``: hexadecimal JSON of the method, the target and the body. Standard library
only, but for the server itself, so that any Python starts it that has the server.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def echo_of(method: str, target: str, body: bytes) -> str:
    """The value of X-Echo."""
    return json.dumps([method, target, body.hex()]).encode().hex()


async def body_of(scope: dict[str, Any], receive: Receive, send: Send) -> bytes | None:
    """Read the whole body of an HTTP request; close any other scope and return None."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return None
    if scope["type"] != "http":
        await send({"type": "websocket.close"})
        return None
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def asgi(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """An ASGI app."""
    body = await body_of(scope, receive, send)
    if body is None:
        return
    query = scope["query_string"]
    target = (scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")
    headers = [(b"x-echo", echo_of(scope["method"], target, body).encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})


def wsgi(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """A WSGI app, for gunicorn."""
    body = environ["wsgi.input"].read()
    start_response(
        "200 OK", [("X-Echo", echo_of(environ["REQUEST_METHOD"], environ["RAW_URI"], body)), ("Content-Length", "0")]
    )
    return []


async def _aiohttp(port: int) -> None:
    from aiohttp import web  # noqa: PLC0415 - a Python has the servers that it has

    async def handle(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        return web.Response(headers={"X-Echo": echo_of(request.method, request.raw_path, body)})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def _tornado(port: int) -> None:
    from tornado import httpserver, httputil  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - as above

    def handle(request: Any) -> None:  # noqa: ANN401 - a type of a package that may be missing
        headers = httputil.HTTPHeaders(
            {"X-Echo": echo_of(request.method, request.uri, request.body), "Content-Length": "0"}
        )
        line = httputil.ResponseStartLine("HTTP/1.1", 200, "OK")
        request.connection.write_headers(line, headers)
        request.connection.finish()

    httpserver.HTTPServer(handle).listen(port, "127.0.0.1")
    await asyncio.Event().wait()


def main(name: str, port: str) -> None:
    """Serve until killed."""
    python = [sys.executable, "-m"]
    commands = {
        "uvicorn": [*python, "uvicorn", "echo:asgi", "--http", "httptools", "--port", port, "--log-level", "critical"],
        "h11": [*python, "uvicorn", "echo:asgi", "--http", "h11", "--port", port, "--log-level", "critical"],
        "hypercorn": [
            *python,
            "hypercorn",
            "-w",
            "0",
            "-b",
            f"127.0.0.1:{port}",
            "--log-level",
            "critical",
            "echo:asgi",
        ],
        "gunicorn": [*python, "gunicorn", "-b", f"127.0.0.1:{port}", "-k", "gthread", "--threads", "8", "echo:wsgi"],
        "node": ["node", str(HERE / "echo.js"), port],
    }
    if name == "aiohttp":
        asyncio.run(_aiohttp(int(port)))
    elif name == "tornado":
        asyncio.run(_tornado(int(port)))
    else:
        os.chdir(HERE)
        # In this process: who ends it ends the server.
        os.execvp(commands[name][0], commands[name])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
