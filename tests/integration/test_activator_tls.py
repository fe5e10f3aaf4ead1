"""Certificates of an activator: by host, from files and Secrets, reloaded while it serves; redirects to HTTPS."""

import base64
import logging
import re
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.core.model.identities import ACTIVATOR
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.http import HttpSettings
from serving.core.settings.innertls import DISABLED, ENABLED, InnerTlsSettings
from serving.core.settings.tls import TlsSettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.mutualtls import MutualTls, PeerTls, open_tls
from serving.net.cluster.kinds import ROUTE, SECRET
from serving.net.wire.authority import Authority
from tests.eventually import until
from tests.integration.activator_stage import HOST, KEY, Stage, send_request, staged
from tests.integration.proxy.peers import get
from tests.integration.tls_stage import RawTls, handshake, issued, write_pair

PERIOD_S = 0.05
# The expiry of all certificates of trustme.
YEAR_3000_S = 32_503_680_000.0


def terms(**arguments: Any) -> TlsSettings:  # noqa: ANN401 - of any kind
    return TlsSettings(address="127.0.0.1:0", reload_period_s=PERIOD_S, **arguments)


def write_pair_in(folder: Path, name: str, *hosts: str) -> None:
    write_pair(folder / f"{name}.crt", folder / f"{name}.key", *hosts)


def tls_of(stage: Stage) -> tuple[str, int]:
    address = stage.activator.tls_address
    assert address is not None
    return address


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.getMessage() == name]


async def checked_again(stage: Stage) -> None:
    """Wait until files and Secrets were read again completely."""
    watch = stage.activator.certificates
    assert watch is not None
    turn = watch.turn
    await until(lambda: watch.turn >= turn + 2)


async def test_service_over_tls_receives_forwarded_proto_https(tmp_path: Path) -> None:
    write_pair_in(tmp_path, "hello", "*.default.localhost")
    async with staged(tls=terms(folder=str(tmp_path))) as stage:
        await stage.service(slots=0)
        pod = await stage.pod_seen("p")
        client = await RawTls.to(tls_of(stage), HOST)
        # The client's X-Forwarded-Proto is replaced.
        client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Forwarded-Proto: gopher\r\n\r\n".encode())
        assert (await client.until(b"\r\n\r\np")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert "\r\nX-Forwarded-Proto: https\r\n" in pod.heads[0]
        assert "proto=https\r\n" in pod.heads[0]
        # Hosts of the inner listener are not served here either.
        client.send(b"GET / HTTP/1.1\r\nHost: hello.default.svc.cluster.local\r\n\r\n")
        assert (await client.until(b"\n")).startswith(b"HTTP/1.1 404 ")
        await client.closed()


async def test_each_host_is_served_its_certificate(tmp_path: Path) -> None:
    write_pair_in(tmp_path, "one", "one.in.example")
    write_pair_in(tmp_path, "wild", "*.in.example", "*.default.localhost")
    nested = tmp_path / "nested"
    nested.mkdir()
    write_pair(nested / "tls.crt", nested / "tls.key", "b.one.in.example")
    async with staged(tls=terms(folder=str(tmp_path))) as stage:
        address = tls_of(stage)
        assert await handshake(address, "one.in.example") == ["one.in.example"]
        assert await handshake(address, "ONE.in.example") == ["one.in.example"]
        assert await handshake(address, "two.in.example") == ["*.in.example", "*.default.localhost"]
        assert await handshake(address, HOST) == ["*.in.example", "*.default.localhost"]
        assert await handshake(address, "b.one.in.example") == ["b.one.in.example"]
        for unknown_name in ("c.two.in.example", "in.example", None):
            with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
                await handshake(address, unknown_name)
        page = stage.activator.ingress.metrics.page.text("")
        assert "\nserving_tls_handshakes_failed_total 3.0\n" in page
        ends = re.findall(r'\nserving_certificate_expiry_timestamp_seconds\{certificate="(\w+)"\} (\S+)', page)
        assert {name: float(end) for name, end in ends} == dict.fromkeys(("one", "wild", "nested"), YEAR_3000_S)


async def test_default_certificate_is_served_for_unknown_names(tmp_path: Path) -> None:
    write_pair_in(tmp_path, "one", "one.example")
    write_pair_in(tmp_path, "rest", "rest.example")
    async with staged(tls=terms(folder=str(tmp_path), default_certificate="rest")) as stage:
        assert await handshake(tls_of(stage), None) == ["rest.example"]
        with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
            await handshake(tls_of(stage), "no.example")


async def test_renewed_certificate_is_served_and_open_connections_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    write_pair(certificate, key, HOST, "old.example")
    async with staged(tls=terms(certificate_files=str(certificate), key_files=str(key))) as stage:
        await stage.service(slots=0)
        await stage.pod_seen("p")
        client = await RawTls.to(tls_of(stage), HOST)
        write_pair(certificate, key, HOST, "new.example")
        await checked_again(stage)
        assert await handshake(tls_of(stage), HOST) == [HOST, "new.example"]
        client.send(get(b"/").replace(b"Host: h", b"Host: " + HOST.encode()))
        assert (await client.until(b"\r\n\r\np")).startswith(b"HTTP/1.1 200 OK\r\n")
        await client.closed()
    assert [event["hosts"] for event in events(caplog, "certificate.loaded")] == [
        (HOST, "old.example"),
        (HOST, "new.example"),
    ]


async def test_invalid_certificate_is_reported_once_and_last_valid_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pair_in(tmp_path, "one", "one.example")
    write_pair_in(tmp_path, "two", "two.example")
    async with staged(tls=terms(folder=str(tmp_path))) as stage:
        (tmp_path / "one.key").write_bytes((tmp_path / "two.key").read_bytes())
        await checked_again(stage)
        await checked_again(stage)
        (tmp_path / "one.key").unlink()
        await checked_again(stage)
        assert await handshake(tls_of(stage), "one.example") == ["one.example"]
        refused = [(event["where"], event["reason"]) for event in events(caplog, "certificate.refused")]
        assert refused == [
            (f"{tmp_path}/one.crt with {tmp_path}/one.key", "the key is not this certificate's"),
            (f"{tmp_path}/one.key", "No such file or directory"),
        ]
        # A certificate without any of its files is removed.
        (tmp_path / "one.crt").unlink()
        await checked_again(stage)
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await handshake(tls_of(stage), "one.example")


def secret_of(*hosts: str, name: str = "world", namespace: str = "knative-serving") -> dict[str, Any]:
    pair = issued(*hosts)
    parts = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": {name: base64.b64encode(text).decode() for name, text in parts.items()},
    }


async def test_secret_is_read_by_name_and_reloaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = MemoryCluster()
    async with staged(cluster=cluster, tls=terms(secrets="world")) as stage:
        address = tls_of(stage)
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await handshake(address, "one.example")
        assert "not found" in events(caplog, "certificate.refused")[0]["reason"]
        await cluster.create(SECRET, secret_of("one.example"))
        await checked_again(stage)
        assert await handshake(address, "one.example") == ["one.example"]
        await cluster.replace(SECRET, secret_of("one.example", "two.example"))
        await checked_again(stage)
        assert await handshake(address, "two.example") == ["one.example", "two.example"]
        broken: list[tuple[dict[str, Any], str]] = [
            ({"data": {"tls.crt": "AAAA", "tls.key": "AAAA"}}, "no certificate as PEM"),
            ({"data": {"tls.crt": "AAAA"}}, "it has no tls.key"),
            ({"type": "Opaque"}, "its type is Opaque, not kubernetes.io/tls"),
        ]
        for change, reason in broken:
            await cluster.delete(SECRET, "knative-serving", "world")
            await cluster.create(SECRET, secret_of("three.example") | change)
            await checked_again(stage)
            assert reason in events(caplog, "certificate.refused")[-1]["reason"]
        assert await handshake(address, "two.example") == ["one.example", "two.example"]
        # Failed handshakes are logged as a count, not individually.
        assert len(events(caplog, "tls.handshakes-failed")) == 1


@pytest.mark.parametrize("mode", [DISABLED, ENABLED])
async def test_the_inner_listener_serves_certificates_of_cluster_local_hosts(mode: str) -> None:
    rules = msgspec.structs.replace(ControllerSettings().host_rules, has_local_certificates=True)
    names = ("hello.default", "hello.default.svc", "hello.default.svc.cluster.local")
    async with staged(rules=rules, inner_tls=InnerTlsSettings(mode=mode), tls=terms()) as stage:
        await stage.service(slots=0)
        if mode == DISABLED:
            await stage.pod_seen("p")
        uid = (await stage.cluster.get(ROUTE, "default", "hello"))["metadata"]["uid"]
        await stage.cluster.create(SECRET, secret_of(*names, name=f"route-{uid}-local", namespace="default"))
        secured = {"status": {"address": {"url": f"https://{names[-1]}"}}}
        await stage.cluster.patch(ROUTE, "default", "hello", patch=secured, subresource="status")
        await until(lambda: stage.activator.certificates.certificates.count)
        for name in names:
            assert await handshake(stage.inner, name) == [*names]
        client = await RawTls.to(stage.inner, names[0])
        host, status, end = ("hello", 200, b"\r\n\r\np") if mode == DISABLED else ("nobody", 404, b"\n")
        client.send(f"GET / HTTP/1.1\r\nHost: {host}.default\r\nConnection: close\r\n\r\n".encode())
        assert (await client.until(end)).startswith(f"HTTP/1.1 {status} ".encode())
        await client.closed()
        assert (await send_request(stage.inner, host="nobody.default")).status == 404
        if mode == ENABLED:
            tls = MutualTls(Authority(KEY).certificate)
            _, writer = await open_tls(*stage.inner, PeerTls(tls=tls, expected=ACTIVATOR))
            writer.transport.abort()


async def test_plain_http_is_redirected_to_https_with_exceptions(tmp_path: Path) -> None:
    write_pair_in(tmp_path, "hello", "*.default.localhost")
    async with staged(tls=terms(folder=str(tmp_path)), http_protocol="Redirected") as stage:
        await stage.service(slots=0)
        await stage.pod_seen("p")
        port = tls_of(stage)[1]
        sent = await send_request(stage.public, "/a?b=c", host=f"{HOST}:8080", method="POST", body="x")
        assert (sent.status, sent.headers["location"]) == (301, f"https://{HOST}:{port}/a?b=c")
        assert sent.body == ""
        assert (await send_request(stage.public, "/.well-known/acme-challenge/token")).body == "p"
        assert (await send_request(stage.public, "/", host="nobody.example")).status == 404
        probe = await send_request(stage.public, headers=["K-Network-Probe: activator"])
        assert (probe.status, probe.body) == (200, "activator")
        assert (await send_request(stage.inner, host="hello.default.svc.cluster.local")).body == "p"
        # A redirect does not count as an unmatched request.
        page = stage.activator.ingress.metrics.page.text("")
        assert "serving_requests_unmatched_total 2.0\n" in page


async def test_redirect_names_the_public_port() -> None:
    async with staged(tls=TlsSettings(public_port=443), http_protocol="Redirected") as stage:
        await stage.service(slots=0)
        assert stage.activator.tls_address is None
        assert (await send_request(stage.public, "/a")).headers["location"] == f"https://{HOST}/a"


async def test_request_with_trusted_forwarded_proto_https_is_not_redirected() -> None:
    http = HttpSettings(trusted_proxies="127.0.0.0/8")
    async with staged(tls=TlsSettings(public_port=443), http_protocol="Redirected", http=http) as stage:
        await stage.service(slots=0)
        await stage.pod_seen("p")
        assert (await send_request(stage.public, headers=["X-Forwarded-Proto: https"])).body == "p"
        assert (await send_request(stage.public, headers=["X-Forwarded-Proto: http"])).status == 301
        assert (await send_request(stage.public)).status == 301
    async with staged(tls=TlsSettings(public_port=443), http_protocol="Redirected") as stage:
        await stage.service(slots=0)
        assert (await send_request(stage.public, headers=["X-Forwarded-Proto: https"])).status == 301
