"""Inner TLS between activator, queue-proxy and autoscaler, over real sockets with a recorder of the traffic."""

import asyncio
import functools
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from serving.core.model.identities import ACTIVATOR, AUTOSCALER, PodIdentity
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.innertls import DISABLED, PERMISSIVE, InnerTlsSettings
from serving.net.aio.clock import wall_s
from serving.net.aio.mutualtls import MutualTls, PeerTls, open_tls
from serving.net.wire.tokens import pod_secret, pod_token
from serving.net.wire.websocket import connected
from tests.eventually import until
from tests.integration import inner_stage
from tests.integration.activator_stage import KEY, send_request
from tests.integration.inner_stage import REVISION, SERVERS, SETTINGS, Inner
from tests.integration.query_token import HEADERS

POD = PodIdentity(namespace="default", revision=REVISION, pod="hello-1").spiffe_id
OTHER_POD = PodIdentity(namespace="other", revision="thief-00001", pod="thief-1").spiffe_id
SECRET = pod_secret(KEY, namespace="default", pod="hello-1")
# Bytes that would be visible in plain HTTP, in a websocket handshake or with a token.
CLEARTEXT = (b"HTTP/1.1", b"GET /", b"Host:", b"K-Pod-Secret", b"Bearer", b"secret-body", SECRET.encode())


Secured = Callable[..., AbstractAsyncContextManager[Inner]]


@pytest.fixture(params=SERVERS)
def secured(request: pytest.FixtureRequest) -> Secured:
    """All daemons, with the queue-proxy in a separate process or in the process of the app."""
    return functools.partial(inner_stage.secured, serve=SERVERS[request.param])


async def direct_response(inner: Inner, tls: MutualTls, *, expected: str = POD) -> bytes:
    """The response of the pod's port to a request of this peer; b"" if the handshake or the connection fails."""
    request = f"GET /direct HTTP/1.1\r\nHost: h\r\nK-Pod-Secret: {SECRET}\r\nConnection: close\r\n\r\n"
    try:
        reader, writer = await open_tls(*inner.requests, PeerTls(tls=tls, expected=expected))
        writer.write(request.encode())
        return await reader.read()
    except OSError:
        return b""


async def refusals(inner: Inner) -> bytes:
    """The metrics of rejected handshakes on the pod's page."""
    reader, writer = await asyncio.open_connection(*inner.admin)
    authorization = f"Authorization: {HEADERS['Authorization']}\r\n"
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: h\r\n{authorization}Connection: close\r\n\r\n".encode())
    page = await reader.read()
    writer.close()
    assert page.startswith(b"HTTP/1.1 200 "), page
    return b"\n".join(line for line in page.splitlines() if b"tls_refused" in line)


async def test_query_token_authorizes_metrics_of_a_pod(secured: Secured) -> None:
    async with secured() as inner:
        for _ in range(2):
            await refusals(inner)
        for value in ("Bearer guess", f"{HEADERS['Authorization']}x", ""):
            reader, writer = await asyncio.open_connection(*inner.admin)
            request = f"GET /metrics HTTP/1.1\r\nHost: h\r\nAuthorization: {value}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
            writer.close()


async def test_no_cleartext_is_sent_between_daemons(secured: Secured) -> None:
    async with secured() as inner:
        response = await send_request(inner.stage.public, "/wanted", method="POST", body="secret-body")
        assert response.status == 200
        assert "/wanted" in response.body
        await until(lambda: StatSource.POD in inner.sources)
        for relay in (inner.to_pod, inner.to_autoscaler):
            assert relay.recorded[0][0] == 0x16
            assert [word for word in CLEARTEXT if word in relay.text] == []


async def test_without_inner_tls_requests_are_sent_in_cleartext(secured: Secured) -> None:
    off = InnerTlsSettings(mode=DISABLED)
    async with secured(InnerTlsSettings(mode=PERMISSIVE), pod_settings=off) as inner:
        assert (await send_request(inner.stage.public, "/wanted")).status == 200
        assert b"GET /wanted" in inner.to_pod.text


async def test_permissive_mode_accepts_plain_requests_and_prefers_tls(secured: Secured) -> None:
    async with secured(InnerTlsSettings(mode=PERMISSIVE)) as inner:
        assert (await send_request(inner.stage.public, "/wanted")).status == 200
        assert b"GET /wanted" not in inner.to_pod.text
        assert (await send_request(inner.requests, "/direct")).status == 200


async def test_plain_request_to_pod_is_forbidden(secured: Secured) -> None:
    async with secured() as inner:
        response = await send_request(inner.requests, "/direct", headers=[f"K-Pod-Secret: {SECRET}"])
        assert response.status == 403
        assert "activators only" in response.body
        assert b'queueproxy_tls_refused_total{reason="no TLS"}' in await refusals(inner)


@pytest.mark.parametrize("identity", [OTHER_POD, POD, AUTOSCALER])
async def test_peer_without_activator_identity_is_forbidden(secured: Secured, identity: str) -> None:
    async with secured() as inner:
        assert (await direct_response(inner, inner.contexts(identity))).startswith(b"HTTP/1.1 403 ")
        assert (await direct_response(inner, inner.contexts(ACTIVATOR))).startswith(b"HTTP/1.1 200 ")


def expired(inner: Inner) -> MutualTls:
    return inner.contexts(ACTIVATOR, at_s=wall_s() - 100, life_s=60)


def not_yet_valid(inner: Inner) -> MutualTls:
    return inner.contexts(ACTIVATOR, at_s=wall_s() + 1000)


def of_another_authority(inner: Inner) -> MutualTls:
    return inner.contexts(ACTIVATOR, key=bytes(32))


def without_certificate(inner: Inner) -> MutualTls:
    return MutualTls(inner.secured.authority.certificate)


def with_tls_1_2(inner: Inner) -> MutualTls:
    tls = inner.contexts(ACTIVATOR)
    tls.client.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.client.maximum_version = ssl.TLSVersion.TLSv1_2
    return tls


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (expired, "expired"),
        (not_yet_valid, "not yet valid"),
        (of_another_authority, "other authority"),
        (without_certificate, "no certificate"),
        (with_tls_1_2, "older than TLS 1.3"),
    ],
)
async def test_invalid_handshake_is_rejected_counted_and_logged(
    secured: Secured, peer: Callable[[Inner], MutualTls], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured() as inner:
        assert await direct_response(inner, peer(inner)) == b""
        line = f'queueproxy_tls_refused_total{{reason="{reason}"}} 1'.encode()
        assert line in await refusals(inner)
        logged = [record for record in caplog.records if record.message == "tls.refused"]
        assert [record.__dict__["reason"] for record in logged] == [reason]


async def test_other_pod_at_the_address_receives_no_request(secured: Secured) -> None:
    async with secured(pod="hello-2") as inner:
        response = await send_request(inner.stage.public, "/wanted", headers=["X-Word: secret-body"])
        assert response.status == 502
        # Clients do not see identities.
        assert "no connection to a pod in 8 tries" in response.body
        assert "spiffe" not in response.body
        assert b"secret-body" not in inner.to_pod.text
        assert inner.stage.activator.inner.secured is not None
        assert inner.stage.activator.inner.secured.tls.failures["wrong identity"] > 0


async def test_pod_can_report_only_for_itself(secured: Secured) -> None:
    names = f"namespace=default&revision={REVISION}&pod=hello-1"
    token = pod_token(KEY, namespace="default", revision=REVISION, pod="hello-1")
    async with secured() as inner:
        url = "ws://{}:{}/stats?{}".format(*inner.stats_address, names)
        with pytest.raises(ConnectionError, match="403"):
            async with connected(url, token=token):
                pass
        to = PeerTls(tls=inner.contexts(OTHER_POD), expected=AUTOSCALER)
        with pytest.raises(ConnectionError, match="403"):
            async with connected(url, token=token, secured=to):
                pass


async def test_stats_token_is_sent_only_to_the_autoscaler(secured: Secured) -> None:
    async with secured() as inner:
        # The pod's certificate is valid too, but for another identity.
        to = PeerTls(tls=inner.contexts(POD), expected=AUTOSCALER)
        url = "ws://{}:{}/stats".format(*inner.to_pod.address)
        with pytest.raises(ConnectionError, match=r"expected .*/daemon/autoscaler"):
            async with connected(url, token=SECRET, secured=to):
                pass


async def test_certificates_are_renewed_without_failed_requests(secured: Secured) -> None:
    # Two renewals on each side take 14 s. With a shorter life, certificates could expire during a pause of a busy
    # machine.
    settings = InnerTlsSettings(mode=SETTINGS.mode, certificate_life_s=10.0)
    async with secured(settings) as inner:
        assert inner.stage.activator.inner.secured is not None
        tls = inner.stage.activator.inner.secured.tls
        statuses: list[int] = []
        while tls.turn < 3 or inner.secured.tls.turn < 3 or len(statuses) <= 8:
            statuses += [
                response.status
                for response in await asyncio.gather(*(send_request(inner.stage.public) for _ in range(8)))
            ]
        assert set(statuses) == {200}
