"""The queue-proxy process: ``python -m serving.queueproxy.main``. After a fork: ``run(spec)`` or ``run_on_call(...)``.

Environment, all about one pod (its parent derives the secrets, see ``serving.net.wire.tokens``):

- ``SERVING_POD_NAMESPACE``, ``SERVING_POD_REVISION``, ``SERVING_POD_NAME``: the pod's names. Required.
- ``SERVING_POD_APP``: the app's address, such as "127.0.0.1:8080". Required.
- ``SERVING_POD_TCP_PORTS``: the app's TCP ports by containerPort, as JSON: ``{"5432": 23411}``.
- ``SERVING_POD_LISTEN``, ``SERVING_POD_ADMIN_LISTEN``: the queue-proxy's addresses; by default "0.0.0.0:8012" and
  "0.0.0.0:8022".
- ``SERVING_POD_PROTOCOL``: the name of the app's port, "http1" (default) or "h2c" (HTTP/2 with prior knowledge).
- ``SERVING_POD_IP``: the pod's address in the request log.
- ``SERVING_LISTEN_FDS``: bound sockets that replace the two addresses, as JSON: ``{"requests": 3, "admin": 4}``.
- ``SERVING_POD_READINESS``: the app's readinessProbe (core/v1) as JSON; by default a TCP connection to the app.
- ``SERVING_POD_STATS_URL``: the autoscaler's websocket, such as "ws://127.0.0.1:6081/stats".
- ``SERVING_POD_STATS_TOKEN``: the token for that websocket.
- ``SERVING_POD_STATS_TOKEN_FILE``: a file with that token instead; it is read for each connection, and may change.
- ``SERVING_POD_STATS_NETWORK``: the path of the websocket's network namespace, if it differs from the app's.
- ``SERVING_POD_GAUGES``: the app's gauges to report, as JSON: ``["vllm:num_requests_waiting"]``; none by default.
- ``SERVING_POD_TOKENS``: "true" counts the tokens of OpenAI requests in flight; "false" by default.
- ``SERVING_POD_LOADING_MAX_S``: how many seconds a starting pod reports that it loads; by default it never does.
- ``SERVING_POD_METRICS_PATH``, ``SERVING_POD_METRICS_PORT``: the app's metrics page; by default "/metrics" at the app's
  port.
- ``SERVING_POD_DORMANT_AFTER_S``: the idle time in seconds before the app is frozen; by default never.
- ``SERVING_POD_DORMANT_CALL``: the app's own calls to sleep and wake, "POST /sleep, POST /wake_up".
- ``SERVING_POD_PROCESSES``: the prefix of the files that record the app's first processes.
- ``SERVING_POD_FREEZER``: the cgroup that freezes the app.
- ``SERVING_POD_APP_USER``: the user that only this pod has, or 0. Connections are made only to sockets of this user and
  of the app's recorded processes. Without the variable, any listener at the app's address is the app.
- ``SERVING_POD_GUARDED``: "true" accepts requests of activators only; "false" by default.
- ``SERVING_POD_CALLER_KEY``: the key that /caller-token requires; by default any process of the pod's network may call
  it.
- ``SERVING_POD_UNFROZEN``: in a cluster, why the app cannot be frozen; empty if the pod shares its process namespace.
- ``SERVING_POD_SECRET``: the K-Pod-Secret header of trusted requests; without it no request is trusted.
- ``SERVING_POD_AUTHORITY``: the certificate of the installation's authority as PEM; required if
  ``SERVING_QUEUEPROXY_INNER_TLS_MODE`` is Permissive or Enabled.
- ``SERVING_READY_FD``: a pipe for readiness, one JSON object per line: ``{"pid": 7, "ready": true}``. After a drain the
  line is ``{"pid": 7, "ready": false, "drained": true}``, and the app may end. SIGUSR1 repeats the last line.
- ``SERVING_QUEUEPROXY_<FIELD>``: each setting of ``serving.core.settings.queueproxy`` in its plain unit, as in
  ``SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY=10`` or ``SERVING_QUEUEPROXY_HTTP_HEAD_BYTES_MAX=65536``.

Exit codes: 0 after a drain, 1 after a failure, 2 for an invalid environment. A process that forks queue-proxies imports
this module first. The event loop, random numbers and tokens are created after the fork.
"""

if __name__ == "__main__":
    import gc

    # Before the slow imports below; see startup. They create no garbage, so the collector is off.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()
    gc.disable()


import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable, Coroutine

from serving.core.model.errors import SettingsError
from serving.core.model.launch import USAGE_EXIT
from serving.core.settings.load import removed_variables
from serving.core.settings.queueproxy import QUEUEPROXY
from serving.net.aio.daemon import collect_rarely, raise_descriptor_limit, run_daemon
from serving.net.aio.supervise import TaskOwner
from serving.net.proxy.forwarding.accesslog import stdout_log
from serving.net.proxy.forwarding.exchange import Wiring
from serving.net.proxy.http1.pool import AppConnector, Pool
from serving.net.proxy.server.connection import Connection
from serving.net.proxy.server.listener import HttpServer
from serving.queueproxy.io.credentials import Credentials
from serving.queueproxy.io.podhandler import PodHandler
from serving.queueproxy.io.podrequests import NO_ACTIVATOR
from serving.queueproxy.io.podservice import PodService, socket_of
from serving.queueproxy.io.readiness import PUSH_AGAIN, ReadinessPipe, listener_check
from serving.queueproxy.metrics import refusal_lines, tls_lines
from serving.queueproxy.podspec import PodSpec, spec_from_environment


def main() -> int:
    """Run with the settings in the environment."""
    try:
        spec = spec_from_environment(os.environ)
    except SettingsError as error:
        from serving.net.aio.output import write_error  # noqa: PLC0415 - it ends here

        write_error(str(error))
        return USAGE_EXIT
    for problem in removed_variables(QUEUEPROXY, os.environ):
        from serving.net.aio.output import write_error  # noqa: PLC0415 - few have any

        write_error(f"warning: {problem}")
    return run(spec)


def run(spec: PodSpec) -> int:
    """Run one pod's queue-proxy until it ends; return the exit code. Creates the event loop."""

    async def known() -> PodSpec:
        return spec

    return run_on_call(known)


def run_on_call(called: Callable[[], Coroutine[object, object, PodSpec | None]]) -> int:
    """Create the event loop, await the pod that ``called`` returns, and run it; return the exit code.

    The code is 0 if ``called`` returns None.
    """
    collect_rarely()
    raise_descriptor_limit()

    async def body(stop: asyncio.Event) -> None:
        async with TaskOwner() as tasks:
            waiting = tasks.start(called(), name="call", is_awaited=True)
            stopped = tasks.start(stop.wait(), name="stop")
            await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
            spec = waiting.result() if waiting.done() else None
        if spec is not None:
            await serve(spec, stop)

    return run_daemon("queueproxy", body)


async def serve(spec: PodSpec, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set or POST /drain arrives, then drain."""
    log = stdout_log(spec.settings.http)
    request_log = None
    if spec.settings.logging.is_on:
        from serving.queueproxy.io.requestlog import RequestLog  # noqa: PLC0415 - most pods log no requests

        request_log = RequestLog(spec)
    pool_class = Pool
    if spec.is_http2:
        from serving.net.proxy.http2.upstream import Http2Pool  # noqa: PLC0415 - most apps need none of it

        pool_class = Http2Pool
    check = listener_check(spec)
    server = HttpServer(
        spec.settings.http.with_hop_room(),
        # The limits of the app's own heads, to which nothing was added yet.
        pool=pool_class(
            spec.settings.http,
            clock=time.monotonic,
            connector=AppConnector(None if check is None else check.require),
        ),
        access_log=log,
        request_log=request_log,
        name=b"queue-proxy",
    )
    pod, pipe = PodHandler(spec, clock=server.clock), ReadinessPipe(spec.ready_fd)
    can_sleep = spec.processes or spec.dormant_call is not None or spec.unfrozen is not None
    if spec.dormant_after_s is not None and can_sleep:
        from serving.queueproxy.io.dormant import Dormancy  # noqa: PLC0415 - most pods never sleep

        def changed(dormant: bool) -> None:  # noqa: FBT001 - the shape of a callback
            if not pod.is_draining:
                pipe.push(ready=pod.is_ready, dormant=dormant)

        pod.dormancy = Dormancy(
            spec,
            clock=server.clock,
            pod=pod,
            on_sleep=server.close_idle_upstreams,
            on_wake=pod.skip_idle,
            on_change=changed,
        )
    credentials = Credentials(spec)
    asyncio.get_running_loop().add_signal_handler(PUSH_AGAIN, pipe.push_again)
    service = PodService(
        spec, pod, server, credentials=credentials, pipe=pipe, numbers=lambda: _numbers(server, credentials)
    )
    await server.listen(socket_of(spec, "requests", spec.listen), pod, make=_connection(spec, credentials))
    await service.listen(stop.set)
    try:
        await service.run(stop)
    finally:
        # Also after a failed task.
        await server.finish(grace_s=0)
        for output in (log, request_log):
            if output is not None:
                await output.close()


def _connection(spec: PodSpec, credentials: Credentials) -> Callable[[HttpServer, Wiring], asyncio.Protocol]:
    """The protocol factory for connections to the request port."""
    tls = credentials.tls
    if tls is None:
        return Connection
    from serving.net.proxy.tls.connector import RefusalLog  # noqa: PLC0415 - without inner TLS a start is spared it
    from serving.net.proxy.tls.layer import TlsLayer, TlsTerms  # noqa: PLC0415 - as above

    terms = TlsTerms(
        context=tls.server,
        handshake_max_s=spec.settings.http.head_wait_max_s,
        failures=tls.failures,
        plain_refusal=(403, NO_ACTIVATOR),
        takes_plain=not spec.settings.inner_tls.is_strict,
        is_mutual=True,
        on_failure=RefusalLog(tls).log,
    )
    return lambda server, wiring: TlsLayer(server, wiring, terms)


def _numbers(server: HttpServer, credentials: Credentials) -> list[str]:
    lines = [] if credentials.tls is None else tls_lines(credentials.tls.failures, credentials.tls.not_after_s)
    if server.access_log is not None:
        lines.append(f"queueproxy_access_log_dropped_total {server.access_log.dropped_count}")
    if server.request_log is not None:
        lines.append(f"queueproxy_request_log_dropped_total {server.request_log.dropped_count}")
    lines += refusal_lines(server.refusals.counts)
    lines.append(f"queueproxy_client_connections {server.connection_count}")
    lines.append(f"queueproxy_app_connections {server.pool.open_count}")
    return lines


if __name__ == "__main__":  # pragma: no cover - only in a process of its own
    sys.exit(main())
