"""The queue-proxy as a process: ``python -m serving.queueproxy.main``, or ``run(spec)`` right after a fork.

Environment (all of one pod; its parent derives the secrets, see ``serving.wire.tokens``):

- ``SERVING_POD_NAMESPACE``, ``SERVING_POD_REVISION``, ``SERVING_POD_NAME``: who it is. Needed.
- ``SERVING_POD_APP``: where its app listens, "127.0.0.1:8080". Needed.
- ``SERVING_POD_LISTEN``, ``SERVING_POD_ADMIN_LISTEN``: where it listens itself; "0.0.0.0:8012" and "0.0.0.0:8022".
- ``SERVING_POD_PROTOCOL``: the name of the app's port, "http1" or "h2c" (HTTP/2 with prior knowledge); "http1".
- ``SERVING_LISTEN_FDS``: bound sockets to use instead of those, as JSON: ``{"requests": 3, "admin": 4}``.
- ``SERVING_POD_READINESS``: the app's readinessProbe (core/v1) as JSON; without it a TCP connection to the app.
- ``SERVING_POD_STATS_URL``, ``SERVING_POD_STATS_TOKEN``: the autoscaler's websocket, "ws://127.0.0.1:6081/stats".
- ``SERVING_POD_STATS_TOKEN_FILE``: a file with that token, in its place; it is read at each connection, and may change.
- ``SERVING_POD_STATS_NETWORK``: the path of the network namespace in which that websocket is, if it is another than the app's.
- ``SERVING_POD_SECRET``: what a request must carry in K-Pod-Secret to be trusted; without it no request is.
- ``SERVING_READY_FD``: a pipe into which readiness is written, one JSON object a line: ``{"pid": 7, "ready": true}``;
  ``{"pid": 7, "ready": false, "drained": true}`` when it drains and the app may end. SIGUSR1 repeats the last line.
- ``SERVING_QUEUEPROXY_<FIELD>``: each setting of ``serving.settings.queueproxy`` in its plain unit, as in
  ``SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY=10`` or ``SERVING_QUEUEPROXY_HTTP_HEAD_BYTES_MAX=65536``.

Exit codes: 0 after a drain, 1 after a failure, 2 for an environment that cannot be used. A parent that forks imports
this module before: loop, randomness and tokens are made after the fork.
"""

if __name__ == "__main__":
    import gc

    # Before the imports below, which take long: see startup. They make no garbage, so looking for some is a waste of time.
    from serving.aio.startup import exit_on_signals

    exit_on_signals()
    gc.disable()


import asyncio
import contextlib
import gc
import os
import random
import resource
import socket
import sys

from serving.aio.daemon import run_daemon
from serving.model.errors import SettingsError
from serving.proxy.accesslog import stdout_log
from serving.proxy.server import HttpServer
from serving.queueproxy.io.admin import AdminHandler
from serving.queueproxy.io.drain import drain
from serving.queueproxy.io.readiness import PUSH_AGAIN, ReadinessPipe, watch_app
from serving.queueproxy.io.requests import PodHandler
from serving.queueproxy.io.stats import report_stats, stats_link
from serving.queueproxy.podspec import Address, PodSpec, spec_from_environment
from serving.queueproxy.request_metrics import series
from serving.wire.link import Link

__all__ = ["main", "run", "serve"]

_USAGE_EXIT = 2
_GOODBYE_S = 0.5
# Requests make few cycles, so that looking for them rarely costs nothing (default: each 700 objects).
_GC_THRESHOLD = 20_000


def main() -> int:
    """Run as the environment says."""
    try:
        spec = spec_from_environment(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_EXIT
    return run(spec)


def run(spec: PodSpec) -> int:
    """Run one pod's queue-proxy to its end; the exit code. Makes its own loop: there must be none yet."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(_GC_THRESHOLD)
    _raise_descriptor_limit()

    async def body(stop: asyncio.Event) -> None:
        await serve(spec, stop)

    return run_daemon("queueproxy", body)


async def serve(spec: PodSpec, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, or POST /drain, and drain."""
    log = stdout_log(spec.settings.http)
    server = HttpServer(spec.settings.http, access_log=log)
    if spec.is_http2:
        from serving.proxy.http2.pool import Http2Pool  # noqa: PLC0415 - most apps need none of it

        server.pool = Http2Pool(spec.settings.http, clock=server.clock)
    pod = PodHandler(spec, clock=server.clock)
    pipe = ReadinessPipe(spec.ready_fd)
    asyncio.get_running_loop().add_signal_handler(PUSH_AGAIN, pipe.push_again)
    link = stats_link(spec, draw=random.random) if spec.stats_url else None

    def numbers() -> bytes:
        return _numbers(pod, server, link, revision=spec.revision)

    admin_server = HttpServer(spec.settings.http)
    admin = AdminHandler(pod, on_drain=stop.set, numbers=numbers)
    await server.listen(_where(spec, "requests", spec.listen), pod)
    await admin_server.listen(_where(spec, "admin", spec.admin), admin)
    flushed = asyncio.Event()

    known = asyncio.Event()

    def changed(ready: bool) -> None:  # noqa: FBT001 - the shape of a callback
        pipe.push(ready=ready)
        admin.readiness_changed()
        known.set()

    def drained() -> None:
        pipe.push(ready=False, drained=True)
        admin.drained()

    async with asyncio.TaskGroup() as group:
        watch = group.create_task(watch_app(spec, pod, changed), name="watch app")
        tasks = [watch]
        reports = None
        if link is not None:
            tasks.append(group.create_task(_connect(link, known, spec), name="stats connection"))
            reports = group.create_task(report_stats(spec, pod, link, stop=flushed), name="stats reports")
        await stop.wait()
        watch.cancel()
        pipe.push(ready=False)
        admin.stopping()
        await drain(spec, pod, server, on_drained=drained)
        flushed.set()
        if reports is not None:
            await reports
        for task in tasks:
            task.cancel()
    # Requests that wait for the drain are still to be answered.
    await admin_server.finish(grace_s=_GOODBYE_S)
    if log is not None:
        await log.close()


async def _connect(link: Link, known: asyncio.Event, spec: PodSpec) -> None:
    """Keep the connection for statistics. Requests wait for the app's readiness and not for it, so that goes first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(spec.settings.report_period_s):
            await known.wait()
    await link.run()


def _where(spec: PodSpec, name: str, address: Address) -> socket.socket | Address:
    descriptor = spec.listen_fds.get(name)
    if descriptor is None:
        return address
    inherited = socket.socket(fileno=descriptor)
    inherited.setblocking(False)
    inherited.set_inheritable(False)
    return inherited


def _numbers(pod: PodHandler, server: HttpServer, link: Link | None, *, revision: str) -> bytes:
    """All counts as Prometheus reads them; the sidecar needs no library for that."""
    lines = pod.request_metrics.page(revision=revision)
    lines.append(series("kn_serving_queue_depth", pod.waiting_count, revision=revision))
    lines.append(f"queueproxy_requests_inside {pod.inside_count}")
    lines.append(f"queueproxy_requests_waiting {pod.waiting_count}")
    if server.access_log is not None:
        lines.append(f"queueproxy_access_log_dropped_total {server.access_log.dropped_count}")
    lines.append(f"queueproxy_client_connections {server.connection_count}")
    lines.append(f"queueproxy_app_connections {server.pool.open_count}")
    lines.append(f"queueproxy_app_ready {int(pod.is_ready)}")
    lines.append(f"queueproxy_tasks {len(asyncio.all_tasks())}")
    if link is not None:
        lines.append(f"queueproxy_stats_sent_total {link.sent_count}")
        lines.append(f"queueproxy_stats_unsent_total {link.dropped_count}")
    return "\n".join([*lines, ""]).encode()


def _raise_descriptor_limit() -> None:
    """Each request in flight takes two descriptors, and 1,024 is the usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":  # pragma: no cover - only in a process of its own
    sys.exit(main())
