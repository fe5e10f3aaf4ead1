"""Certificates from an ACME server: order, challenge at the activator, Secret, renewal and errors, over real sockets."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.objects import condition_of
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.tls import TlsSettings
from serving.home.acme.issuer import CertificateIssuer
from serving.home.acme.orders import AcmeOrders
from serving.net.cluster.kinds import CERTIFICATE, EVENT, ROUTE, SECRET
from tests.eventually import until
from tests.integration.acme_server import AcmeServer, Refusal
from tests.integration.activator_stage import HOST, Stage, send_request, staged

DAY_S = 86_400.0
START_S = 1_800_000_000.0
OTHER = "other.default.localhost"
RULES = ControllerSettings(external_domain_tls="enabled").host_rules


class Issuing:
    """An activator, an ACME server and an issuer on one store, with a clock that the test advances."""

    def __init__(self, stage: Stage, server: AcmeServer, folder: Path) -> None:
        self.stage, self.server, self.folder = stage, server, folder
        self.now_s = START_S
        self.directory_url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run an issuer."""
        orders = AcmeOrders(self.directory_url, self.folder, challenge_folder=self.folder / "challenges")
        issuer = CertificateIssuer(self.stage.cluster, orders, self.folder, clock=lambda: self.now_s, look_s=0.02)
        task = asyncio.create_task(issuer.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def certificate(self, host: str) -> None:
        """A Certificate of a host, as the controller creates it."""
        name = host.partition(".")[0]
        owner = {"apiVersion": "serving.knative.dev/v1", "kind": "Route", "name": name, "uid": f"uid-{name}"}
        body = {
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": {"name": f"route-{name}", "namespace": "default", "ownerReferences": [owner]},
            "spec": {"secretName": f"route-{name}", "dnsNames": [host], "issuerRef": {"name": "acme"}},
        }
        await self.stage.cluster.create(CERTIFICATE, body)

    async def condition(self, host: str, name: str, status: str) -> dict[str, Any]:
        """Wait for a condition of a host's Certificate."""

        async def has() -> dict[str, Any] | None:
            certificate = await self.stage.cluster.get(CERTIFICATE, "default", f"route-{host.partition('.')[0]}")
            condition = condition_of(certificate, name)
            return condition if condition.get("status") == status else None

        result = await until(has)
        assert result is not None
        return {**result}

    async def secret(self, host: str) -> dict[str, Any]:
        """The Secret of a host."""
        secret: dict[str, Any] = await self.stage.cluster.get(SECRET, "default", f"route-{host.partition('.')[0]}")
        return secret


@contextlib.asynccontextmanager
async def new_issuing(tmp_path: Path) -> AsyncIterator[Issuing]:
    folder = tmp_path / "acme"
    (folder / "challenges").mkdir(parents=True)
    tls = TlsSettings(address="127.0.0.1:0", reload_period_s=0.05)
    async with staged(tls=tls, rules=RULES, challenge_folder=folder / "challenges") as stage:
        await stage.service(slots=0)
        await stage.pod_seen("p")
        server = AcmeServer(challenge_port=stage.public[1])
        issuing = Issuing(stage, server, folder)
        server.clock = lambda: issuing.now_s
        with server.serving() as issuing.directory_url:
            yield issuing


async def has_reason(issuing: Issuing, reason: str) -> bool:
    events = (await issuing.stage.cluster.list(EVENT)).items
    return reason in {event["reason"] for event in events}


async def test_certificate_is_issued_by_http_challenge_and_served_by_activator(tmp_path: Path) -> None:
    async with new_issuing(tmp_path) as issuing, issuing.running():
        await issuing.certificate(HOST)
        await issuing.certificate(OTHER)
        await issuing.condition(HOST, "Ready", "True")
        await issuing.condition(OTHER, "Ready", "True")
        assert issuing.server.orders == [[HOST], [OTHER]]
        assert len(issuing.server.accounts) == 1
        assert not list((issuing.folder / "challenges").iterdir())
        assert {path.stat().st_mode & 0o777 for path in issuing.folder.iterdir() if path.is_file()} == {0o600}
        secret = await issuing.secret(HOST)
        assert (secret["type"], set(secret["data"])) == ("kubernetes.io/tls", {"tls.crt", "tls.key"})
        assert secret["metadata"]["ownerReferences"][0]["name"] == "route-hello"
        await until(lambda: has_reason(issuing, "CertificateIssued"))
        # As the controller does once the Certificate is ready.
        route = await issuing.stage.cluster.get(ROUTE, "default", "hello")
        copy = {**secret, "metadata": {"name": f"route-{route['metadata']['uid']}", "namespace": "default"}}
        await issuing.stage.cluster.create(SECRET, copy)
        status = {"status": {**route["status"], "url": f"https://{HOST}:8443"}}
        await issuing.stage.cluster.patch(ROUTE, "default", "hello", patch=status, subresource="status")
        await until(lambda: issuing.stage.activator.tls_address)
        address = issuing.stage.activator.tls_address
        assert address is not None
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=HOST)
        served = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        assert ssl.DER_cert_to_PEM_cert(served).encode() in (issuing.folder / f"{HOST}.pem").read_bytes()


async def test_certificate_is_renewed_before_expiry_also_after_restart(tmp_path: Path) -> None:
    async with new_issuing(tmp_path) as issuing:
        async with issuing.running():
            await issuing.certificate(HOST)
            await issuing.condition(HOST, "Ready", "True")
        first = await issuing.secret(HOST)
        issuing.now_s += 50 * DAY_S
        async with issuing.running():
            await issuing.certificate(OTHER)
            await issuing.condition(OTHER, "Ready", "True")
            assert issuing.server.orders == [[HOST], [OTHER]]
            issuing.now_s += 11 * DAY_S

            async def is_renewed() -> bool:
                return await issuing.secret(HOST) != first

            await until(is_renewed)
        assert issuing.server.orders == [[HOST], [OTHER], [HOST]]
        assert len(issuing.server.accounts) == 1


async def test_renewal_follows_the_time_suggested_by_the_server(tmp_path: Path) -> None:
    async with new_issuing(tmp_path) as issuing, issuing.running():
        # The server suggests an early renewal, as before a revocation.
        issuing.server.renewal_s = START_S + DAY_S
        await issuing.certificate(HOST)
        await issuing.condition(HOST, "Ready", "True")
        issuing.now_s += DAY_S + 2
        await until(lambda: issuing.server.orders == [[HOST], [HOST]])
        # The suggested time is later than two thirds of the lifetime.
        issuing.server.renewal_s = START_S + 80 * DAY_S
        issuing.now_s += 70 * DAY_S
        await asyncio.sleep(0.3)
        assert issuing.server.orders == [[HOST], [HOST]]


@pytest.mark.parametrize("text", [b"", b"{", b'{"key_pem": "x", "url": "y"}'])
async def test_unreadable_account_file_is_reported_and_preserved(tmp_path: Path, text: bytes) -> None:
    async with new_issuing(tmp_path) as issuing:
        async with issuing.running():
            await issuing.certificate(OTHER)
            await issuing.condition(OTHER, "Ready", "True")
        (account,) = issuing.folder.glob("account-*.json")
        account.write_bytes(text)
        async with issuing.running():
            await issuing.certificate(HOST)
            failed = await issuing.condition(HOST, "Issuing", "False")
        assert f"the account file {account} cannot be read" in failed["message"]
        assert "restore it from a backup, or move it away" in failed["message"]
        assert account.read_bytes() == text
        assert len(issuing.server.accounts) == 1


async def test_failed_renewal_backs_off_and_retains_certificate_while_others_are_issued(tmp_path: Path) -> None:
    async with new_issuing(tmp_path) as issuing, issuing.running():
        await issuing.certificate(HOST)
        await issuing.condition(HOST, "Ready", "True")
        before = await issuing.secret(HOST)
        issuing.server.unauthorized.add(HOST)
        issuing.now_s += 61 * DAY_S
        failed = await issuing.condition(HOST, "Issuing", "False")
        await until(lambda: has_reason(issuing, "IssuingFailed"))
        failed = await issuing.condition(HOST, "Issuing", "False")
        assert failed["reason"] == "Failed"
        assert f"{HOST}: 200 at /.well-known/acme-challenge/" in failed["message"]
        await issuing.condition(HOST, "Ready", "True")
        assert await issuing.secret(HOST) == before
        await issuing.certificate(OTHER)
        await issuing.condition(OTHER, "Ready", "True")
        assert issuing.server.orders == [[HOST], [HOST], [OTHER]]
        issuing.server.unauthorized.clear()
        issuing.now_s += 121
        await until(lambda: issuing.server.orders[3:] == [[HOST]])
        await until(lambda: not issuing.folder.joinpath("attempts.json").read_bytes().count(b"count"))


async def test_rate_limit_pauses_its_host_across_restarts_and_delays_others(tmp_path: Path) -> None:
    async with new_issuing(tmp_path) as issuing:
        headers = {"Retry_After": "7200"}
        issuing.server.refusals.append(Refusal(429, "rateLimited", "too many certificates", **headers))
        async with issuing.running():
            await issuing.certificate(HOST)
            failed = await issuing.condition(HOST, "Issuing", "False")
            assert "too many certificates" in failed["message"]
            await issuing.certificate(OTHER)
            issuing.now_s += 55
            await asyncio.sleep(0.2)
            assert issuing.server.orders == [[HOST]]
            issuing.now_s += 10
            await issuing.condition(OTHER, "Ready", "True")
        # The pause outlasts a restart.
        issuing.now_s += 7000
        async with issuing.running():
            await asyncio.sleep(0.2)
            assert issuing.server.orders == [[HOST], [OTHER]]
            issuing.now_s += 200
            await issuing.condition(HOST, "Ready", "True")
        assert issuing.server.orders == [[HOST], [OTHER], [HOST]]


async def test_unreachable_directory_is_retried_and_does_not_block_requests(tmp_path: Path) -> None:
    async with new_issuing(tmp_path) as issuing:
        issuing.directory_url, directory_url = "http://127.0.0.1:1/directory", issuing.directory_url
        async with issuing.running():
            await issuing.certificate(HOST)
            await issuing.certificate(OTHER)
            failed = await issuing.condition(HOST, "Ready", "False")
            failed = await issuing.condition(HOST, "Issuing", "False")
            assert "http://127.0.0.1:1/directory: [Errno 111] Connection refused" in failed["message"]
            assert (await send_request(issuing.stage.public)).body == "p"
        issuing.directory_url = directory_url
        issuing.now_s += 61
        async with issuing.running():
            await issuing.condition(OTHER, "Ready", "True")


@pytest.mark.parametrize("token", ["unknown", "..", "a/b", "a.b", "%2e%2e", ""])
async def test_unknown_challenge_path_is_forwarded_to_app(tmp_path: Path, token: str) -> None:
    (tmp_path / "a.b").write_text("a secret")
    async with staged(challenge_folder=tmp_path) as stage:
        await stage.service(slots=0)
        await stage.pod_seen("p")
        response = await send_request(stage.public, f"/.well-known/acme-challenge/{token}")
        assert (response.status, response.body) == (200, "p")
