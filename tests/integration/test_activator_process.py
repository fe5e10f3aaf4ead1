"""The activator as a separate process: against a served API, on inherited sockets, stopped by a signal."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

from serving.core.model.routepolicy import route_digest
from serving.core.settings.controller import ControllerSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import ROUTE
from tests.integration.activator_stage import KEY, Store, send_request
from tests.integration.api_server import served
from tests.tidy.sources import ROOT

RULES = ControllerSettings().host_rules


async def started(folder: Path, environment: dict[str, str], *sockets: socket.socket) -> asyncio.subprocess.Process:
    key = folder / "key"
    key.write_bytes(KEY)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "serving.activator.main"),
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "SERVING_KEY_FILE": str(key),
            # Another test may use the default port at the same time.
            "SERVING_ACTIVATOR_METRICS_ADDRESS": "127.0.0.1:0",
            **environment,
        },
        pass_fds=[sock.fileno() for sock in sockets],
        stderr=asyncio.subprocess.PIPE,
    )


async def stopped(process: asyncio.subprocess.Process) -> tuple[int, list[dict[str, object]]]:
    """Send SIGTERM; return the exit code and the log."""
    process.send_signal(signal.SIGTERM)
    _, log = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in log.decode().splitlines()]


async def test_activator_process_serves_from_zero_and_stops_on_sigterm(tmp_path: Path) -> None:
    store = Store(MemoryCluster())
    with (
        socket.create_server(("127.0.0.1", 0)) as public,
        socket.create_server(("127.0.0.1", 0)) as inner,
        socket.create_server(("127.0.0.1", 0)) as page,
    ):
        async with served(store.cluster, tmp_path) as api:
            environment = {
                "KUBECONFIG": str(api.kubeconfig),
                "SERVING_LISTEN_FDS": json.dumps(
                    {"public": public.fileno(), "inner": inner.fileno(), "activator-metrics": page.fileno()}
                ),
                # There is no autoscaler: frames are dropped, requests are served.
                "SERVING_ACTIVATOR_STATS_URL": "ws://127.0.0.1:1/stats",
            }
            process = await started(tmp_path, environment, public, inner, page)
            try:
                await store.service(state="Reserve")
                task = asyncio.create_task(send_request(public.getsockname()))
                await store.active()
                pod = await store.pod("p")
                response = await task
                digest = await send_request(page.getsockname(), "/routes/default/hello", host="127.0.0.1")
                route = await store.cluster.get(ROUTE, "default", "hello")
            finally:
                code, log = await stopped(process)
            await pod.stop()
    assert (response.status, response.body, code) == (200, "p", 0)
    assert (digest.status, digest.body) == (200, route_digest(route, RULES))
    assert {"activator.serving", "revision.activated", "activator.stopped"} <= {str(line["event"]) for line in log}


async def test_invalid_settings_are_reported_at_start(tmp_path: Path) -> None:
    process = await started(tmp_path, {"SERVING_ACTIVATOR_QUEUE_DEPTH_MAX": "0"})
    _, errors = await process.communicate()
    assert (process.returncode, b"SERVING_ACTIVATOR_QUEUE_DEPTH_MAX" in errors) == (2, True)
