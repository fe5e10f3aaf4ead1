"""``python -m serving.asgi`` with inner TLS, as a separate process that reports to an autoscaler's stats server."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect

from serving.asgi import QueueProxyMiddleware
from serving.core.model.identities import ACTIVATOR, PodIdentity
from serving.core.settings.innertls import ENABLED, PERMISSIVE, InnerTlsSettings
from serving.net.aio.mutualtls import PeerTls, open_tls
from serving.net.wire.authority import Authority
from serving.net.wire.tokens import pod_secret, pod_token
from tests.eventually import until
from tests.integration.activator_stage import KEY, send_request
from tests.integration.inner_stage import REVISION, Inner, spec_of, stats_served
from tests.integration.proxy.peers import free_socket
from tests.integration.proxy.test_in_process import Lifespan, echo

POD = PodIdentity(namespace="default", revision=REVISION, pod="hello-1").spiffe_id
SECRET = pod_secret(KEY, namespace="default", pod="hello-1")
PROBE = [f"K-Pod-Secret: {SECRET}", "K-Network-Probe: app"]
_APP = """
import json, os

async def app(scope, receive, send):
    assert scope["type"] in ("http", "websocket")
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": (await receive())["text"].upper()})
        return
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    body = {key: scope[key] for key in ("path", "scheme", "client", "state")} | {"headers": headers, "environment": dict(os.environ)}
    text = json.dumps(body).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})
"""


class Running(msgspec.Struct, kw_only=True):
    """The process of an app, and its addresses."""

    inner: Inner
    process: asyncio.subprocess.Process
    requests: tuple[str, int]
    log: Path

    async def send_over_tls(self, headers: str = "", identity: str = ACTIVATOR) -> tuple[int, bytes]:
        """Send a request over TLS as a peer with this identity; return the status and the body."""
        secured = PeerTls(tls=self.inner.contexts(identity), expected=POD)
        reader, writer = await open_tls(*self.requests, secured)
        writer.write(f"GET /asked HTTP/1.1\r\nHost: pod\r\n{headers}Connection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split(b" ")[1]), body


def free_port() -> int:
    with free_socket() as sock:
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def running(folder: Path, mode: str, **more: str) -> AsyncIterator[Running]:
    (folder / "inside.py").write_text(_APP)
    inner, settings = Inner(), InnerTlsSettings(mode=mode, certificate_life_s=4.0)
    async with stats_served(inner, settings):
        port, admin = free_port(), free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "SERVING_POD_NAMESPACE": "default",
            "SERVING_POD_REVISION": REVISION,
            "SERVING_POD_NAME": "hello-1",
            "SERVING_POD_APP": f"127.0.0.1:{port}",
            "SERVING_POD_ADMIN_LISTEN": f"127.0.0.1:{admin}",
            "SERVING_POD_STATS_URL": "ws://{}:{}/stats".format(*inner.stats_address),
            "SERVING_POD_STATS_TOKEN": pod_token(KEY, namespace="default", revision=REVISION, pod="hello-1"),
            "SERVING_POD_SECRET": SECRET,
            "SERVING_POD_AUTHORITY": Authority(KEY).certificate,
            "SERVING_POD_READINESS": '{"httpGet": {"path": "/healthy"}}',
            "SERVING_QUEUEPROXY_INNER_TLS_MODE": mode,
            "SERVING_QUEUEPROXY_INNER_TLS_CERTIFICATE_LIFE_S": "4",
            "SERVING_QUEUEPROXY_DRAIN_LAG_S": "0",
            **more,
        }
        log = folder / "log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "serving.asgi", "inside:app"), cwd=folder, env=environment, stderr=file
            )
        new_running = Running(inner=inner, process=process, requests=("127.0.0.1", port), log=log)
        try:
            await until_ready(admin, process)
            yield new_running
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(60):
                await process.wait()


async def until_ready(admin: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while process.returncode is None:
            with contextlib.suppress(OSError):
                if (await send_request(("127.0.0.1", admin), "/readyz")).status == 200:
                    return
            await asyncio.sleep(0.01)


async def test_strict_mode_accepts_only_activator_requests_over_tls(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as pod:
        status, body = await pod.send_over_tls()
        assert status == 200
        seen = json.loads(body)
        assert (seen["path"], seen["state"]) == ("/asked", {})
        plain = await send_request(pod.requests, "/asked", headers=[f"K-Pod-Secret: {SECRET}"])
        assert plain.status == 403
        assert "activators only" in plain.body
        assert (await pod.send_over_tls(identity=POD))[0] == 403


async def test_strict_mode_accepts_kubelet_probe_with_the_secret(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as pod:
        assert (await send_request(pod.requests, "/alive", headers=PROBE)).status == 200
        guessed = [PROBE[0] + "x", PROBE[1]]
        assert (await send_request(pod.requests, "/alive", headers=guessed)).status == 403


async def test_app_sees_original_client_and_scheme_behind_inner_tls(tmp_path: Path) -> None:
    by_activator = f"K-Pod-Secret: {SECRET}\r\nK-Proxy-Request: activator\r\n"
    async with running(tmp_path, ENABLED) as pod:
        for scheme in ("https", "http"):
            headers = f"{by_activator}X-Forwarded-Proto: {scheme}\r\nX-Forwarded-For: 192.0.2.7\r\n"
            _, body = await pod.send_over_tls(headers)
            seen = json.loads(body)
            assert (seen["scheme"], seen["client"][0]) == (scheme, "192.0.2.7")
            assert not [name for name in seen["headers"] if name.startswith("k-")]


async def test_app_environment_contains_no_queue_proxy_secret(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as pod:
        environment = json.loads((await pod.send_over_tls())[1])["environment"]
        assert environment["SERVING_POD_NAME"] == "hello-1"
        token = pod_token(KEY, namespace="default", revision=REVISION, pod="hello-1")
        assert {SECRET, token}.isdisjoint(environment.values())


async def test_websocket_is_forwarded_over_inner_tls(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as pod:
        url, tls = "wss://{}:{}/".format(*pod.requests), pod.inner.contexts(ACTIVATOR)
        async with connect(url, ssl=tls.client, server_hostname="", proxy=None) as socket:
            await socket.send("hello")
            assert await socket.recv() == "HELLO"


async def test_renewed_certificate_is_presented_without_restart(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as pod:
        tls = pod.inner.contexts(ACTIVATOR)

        async def serial() -> str:
            _, writer = await open_tls(*pod.requests, PeerTls(tls=tls, expected=POD))
            serial_number = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
            writer.close()
            return str(serial_number)

        first = await serial()
        async with asyncio.timeout(60):
            while await serial() == first:
                assert (await pod.send_over_tls())[0] == 200


async def test_permissive_mode_accepts_tls_and_plain_requests(tmp_path: Path) -> None:
    async with running(tmp_path, PERMISSIVE) as pod:
        assert (await pod.send_over_tls())[0] == 200
        assert (await send_request(pod.requests, "/asked")).status == 200


async def test_h2c_port_is_rejected_with_reason(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED, SERVING_POD_PROTOCOL="h2c") as pod:
        assert await pod.process.wait() == 2
        assert "uvicorn speaks HTTP/1.1" in pod.log.read_text()


async def test_app_without_lifespan_runs_outside_a_pod(tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text(_APP)
    port, statuses = free_port(), list[int]()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "serving.asgi", "inside:app"),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
    )
    async with asyncio.timeout(60):
        while not statuses:
            assert process.returncode is None
            with contextlib.suppress(OSError):
                statuses.append((await send_request(("127.0.0.1", port), "/asked")).status)
            await asyncio.sleep(0.01)
        assert statuses == [200]
        process.terminate()
        await process.wait()


@pytest.mark.parametrize(("mode", "reply"), [(ENABLED, "failed"), (PERMISSIVE, "complete")])
async def test_other_asgi_server_fails_startup_unless_inner_tls_is_permissive(mode: str, reply: str) -> None:
    inner, settings = Inner(), InnerTlsSettings(mode=mode)
    async with stats_served(inner, settings):
        url = "ws://{}:{}/stats".format(*inner.stats_address)
        spec = msgspec.structs.replace(
            spec_of({}, ("127.0.0.1", free_port()), url, settings, "hello-1"), admin=("127.0.0.1", 0)
        )
        lifespan = Lifespan(QueueProxyMiddleware(echo, spec=spec))
        startup = await lifespan.send_request("startup")
        assert startup["type"] == f"lifespan.startup.{reply}"
        if reply == "failed":
            assert "python -m serving.asgi" in startup["message"]
        else:
            await until(lambda: bool(inner.sources))
            await lifespan.send_request("shutdown")
        await lifespan.task
