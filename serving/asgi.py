"""ASGI middleware that serves as the queue-proxy of a Python app: ``app = QueueProxyMiddleware(app)``.

It limits, queues, counts and times the requests of the app, reports its statistics to the autoscaler, answers probes,
and drains the pod, in the process of the app: a pod is then one process, and a request passes one proxy fewer. It does
nothing outside of a pod (without ``SERVING_POD_NAME``), as on a developer's machine.

``python -m serving.asgi app:app`` runs an unchanged app with uvicorn on the pod's port. Manual:
docs/asgi.md.
"""

if __name__ == "__main__":
    # Before the slow imports below and the app's; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.launch import USAGE_EXIT
from serving.core.model.ports import CONTAINER_PORT
from serving.core.settings.http import HttpSettings
from serving.net.aio.mutualtls import MutualTls
from serving.net.aio.startup import STOP_SIGNALS
from serving.net.aio.supervise import TaskOwner
from serving.queueproxy.io.asgi.call import App, Receive, Scope, Send
from serving.queueproxy.io.asgi.lifespan import StopSignal, run_lifespan
from serving.queueproxy.io.asgi.pod import AsgiPod, RunningCalls
from serving.queueproxy.io.credentials import Credentials
from serving.queueproxy.io.podservice import PodService
from serving.queueproxy.io.readiness import PUSH_AGAIN, READY_PID_VARIABLE, ReadinessPipe
from serving.queueproxy.metrics import tls_lines
from serving.queueproxy.podspec import PodSpec, probing_app, spec_from_environment

if TYPE_CHECKING:
    from serving.queueproxy.io.asgi.innertls import InnerFront, MakeProtocol

_log = logging.getLogger(__name__)

_MARK = "SERVING_POD_NAME"
_LOOPBACK = "127.0.0.1"
# Secrets of the queue-proxy. Processes that the app starts need none of them.
_SECRETS = ("SERVING_POD_SECRET", "SERVING_POD_STATS_TOKEN")
_NO_FRONT = "`python -m serving.asgi MODULE:APP`, which ends TLS before uvicorn (docs/asgi.md)"
_NO_HTTP2 = "the app's port is named h2c, and uvicorn speaks HTTP/1.1: name the port http1, or take a queue-proxy beside the app"


class QueueProxyMiddleware:
    """The queue-proxy of the pod that runs in this process. Outside a pod it has no effect.

    It wraps the app as the outermost middleware. The server must have one process and run the lifespan protocol, by
    which the middleware begins and ends; uvicorn does. ``spec`` describes the pod; None reads the environment.
    """

    def __init__(self, app: App, *, spec: PodSpec | None = None) -> None:
        self._app = app
        self._spec = spec
        self._is_pod = spec is not None or _MARK in os.environ
        self._pod: _InProcessPod | None = None
        self._make: MakeProtocol | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, websocket, or the lifespan of the server."""
        if not self._is_pod:
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await run_lifespan(self._app, scope, receive=receive, send=send, start=self._start, stop=self._stop)
        elif self._pod is None:
            raise RuntimeError("the queue-proxy in process begins with the lifespan of the server: switch it on")
        else:
            await self._pod.requests.handle(scope, receive, send)

    def behind_tls(self, make: "MakeProtocol") -> "MakeProtocol":
        """The server's protocol (created by ``make``) behind inner TLS, if the pod uses inner TLS."""
        self._make = make
        return self._protocol

    def _protocol(self, **options: Any) -> asyncio.Protocol:  # noqa: ANN401 - the server's own
        assert self._make is not None
        front = None if self._pod is None else self._pod.front
        return self._make(**options) if front is None else front.before(self._make, options)

    async def _start(self) -> None:
        spec = self._spec or _spec_taken_from(os.environ)
        if spec.settings.inner_tls.is_strict and self._make is None:
            raise InvalidValue(text="inner TLS before a server that speaks none", expected=_NO_FRONT)
        self._pod = _InProcessPod(spec, self._app)
        await self._pod.start()

    async def _stop(self) -> None:
        assert self._pod is not None
        await self._pod.stop()


class _InProcessPod:
    """The requests of the pod, and its background tasks."""

    def __init__(self, spec: PodSpec, app: App) -> None:
        self._signal = StopSignal()
        self._calls = RunningCalls(end_server=lambda: self._signal.release(is_due=True))
        self._spec = spec
        # The process that was started as the pod leads its session; the server may be a child of it.
        pid = int(os.environ.get(READY_PID_VARIABLE) or os.getsid(0))
        self._pipe = ReadinessPipe(spec.ready_fd, pid=pid)
        marked = msgspec.structs.replace(spec, readiness=probing_app(spec.readiness, secret=spec.secret), gauges=())
        credentials = Credentials(marked)
        self._tls = credentials.tls
        self.front = None if self._tls is None else _front_of(self._tls)
        on_plain = None if self.front is None else self.front.refuse_plain
        self.requests = AsgiPod(spec, app, calls=self._calls, on_plain=on_plain)
        self._service = PodService(
            marked, self.requests, self._calls, credentials=credentials, pipe=self._pipe, numbers=self._numbers
        )
        self._stop = asyncio.Event()
        self._tasks = TaskOwner()
        self._task: asyncio.Task[None] | None = None
        if spec.settings.logging.is_on:
            _log.warning("request_log.unavailable", extra={"reason": "the server of the app has a log of its own"})

    async def start(self) -> None:
        """Begin. Raises ``OSError`` when another process is the queue-proxy of this pod."""
        try:
            await self._service.listen(self._stop.set)
        except OSError as error:
            host, port = self._spec.admin
            text = (
                f"{host}:{port} is taken ({error.strerror}): run the app in one process, without --workers or --reload"
            )
            raise OSError(error.errno, text) from error
        self._signal.intercept(self._stop.set)
        with contextlib.suppress(ValueError, RuntimeError):
            # Only the main thread receives signals.
            asyncio.get_running_loop().add_signal_handler(PUSH_AGAIN, self._pipe.push_again)
        self._task = self._tasks.start(self._service.run(self._stop), name="queue-proxy")
        self._task.add_done_callback(self._end_server)

    def _end_server(self, task: asyncio.Task[None]) -> None:
        """Stop the server after its queue-proxy failed, because the pod could no longer report or drain."""
        if not task.cancelled() and task.exception() is not None:
            self._signal.release(is_due=True)

    def _numbers(self) -> list[str]:
        return [] if self._tls is None else tls_lines(self._tls.failures, self._tls.not_after_s)

    async def stop(self) -> None:
        """Send the last report and end, because the server has ended."""
        assert self._task is not None
        self._signal.release(is_due=False)
        self._calls.finishing = True
        self._stop.set()
        await self._task


def _front_of(tls: MutualTls) -> "InnerFront":
    from serving.queueproxy.io.asgi.innertls import InnerFront  # noqa: PLC0415 - without inner TLS a start is spared it

    return InnerFront(tls)


def _spec_taken_from(environment: MutableMapping[str, str]) -> PodSpec:
    """Read the spec from an environment, and remove its secrets there. Raises ``SettingsError``."""
    spec = spec_from_environment(environment)
    for name in _SECRETS:
        environment.pop(name, None)
    return spec


def main(arguments: list[str] | None = None) -> int:
    """Run an app with uvicorn, as a pod or on a developer's machine; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m serving.asgi",
        description="Run an ASGI app whose queue-proxy is in its own process, with uvicorn.",
    )
    parser.add_argument("app", help="module and name of the app, as in app:app")
    parser.add_argument("--factory", action="store_true", help="treat the name as a function that returns the app")
    options = parser.parse_args(arguments)
    try:
        import uvicorn  # noqa: PLC0415 - a module that imports the middleware need not have it
        from uvicorn.importer import ImportFromStringError, import_from_string  # noqa: PLC0415
        from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: PLC0415
        from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415
    except ImportError:
        sys.stderr.write("serving.asgi: uvicorn is not installed in this environment: pip install uvicorn\n")
        return USAGE_EXIT
    sys.path.insert(0, "")
    try:
        app = import_from_string(options.app)
    except ImportFromStringError as error:
        sys.stderr.write(f"serving.asgi: {error}\n")
        return USAGE_EXIT
    if options.factory:
        app = app()
    if not isinstance(app, QueueProxyMiddleware):
        # uvicorn passes the middleware's forwarding headers to the app, as those of a proxy on this machine.
        proxied = cast("App", ProxyHeadersMiddleware(app, trusted_hosts=_LOOPBACK))
        app = QueueProxyMiddleware(_from_loopback(proxied) if _MARK in os.environ else proxied)
    if os.environ.get("SERVING_POD_PROTOCOL") == "h2c":
        sys.stderr.write(f"serving.asgi: {_NO_HTTP2}\n")
        return USAGE_EXIT
    for number in STOP_SIGNALS:
        # uvicorn repeats the signal that ended it. By now there are buffers to write and exit handlers to run.
        signal.signal(number, _exit)
    uvicorn.run(
        app,
        host=os.environ.get("HOST", _LOOPBACK),
        http=cast("type[asyncio.Protocol]", app.behind_tls(AutoHTTPProtocol)),
        port=int(os.environ.get("PORT", CONTAINER_PORT)),
        # The middleware needs it. Elsewhere it is the app's choice.
        lifespan="on" if _MARK in os.environ else "auto",
        proxy_headers=False,
        # Longer than activators keep idle connections: closing one must not collide with a request.
        timeout_keep_alive=round(HttpSettings().client_idle_max_s),
        access_log=False,
    )
    return 0


def _from_loopback(app: App) -> App:
    """The app for a server behind a queue-proxy: client and scheme are read from the forwarding headers."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope if scope["type"] == "lifespan" else {**scope, "client": (_LOOPBACK, 0)}, receive, send)

    return call


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":  # pragma: no cover - only in a process of its own
    sys.exit(main())
