"""JSON Web Tokens at an activator: an issuer with a key set over HTTP, and hostile tokens."""

import asyncio
import base64
import concurrent.futures
import contextlib
import functools
import gc
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from serving.activator.io import jwtkeys
from serving.activator.routing.sites import Listener
from serving.core.model.knative import ALLOW_FROM_ANNOTATION, JWT_ANNOTATION
from serving.net.cluster.kinds import ROUTE
from serving.net.proxy.forwarding.exchange import Exchange
from tests.eventually import until
from tests.integration.activator_stage import HOST, HttpResponse, Stage, send_request, staged

ISSUER, AUDIENCE = "https://issuer.example.com", "api"
WHOLE = {"revisionName": "hello-00001", "percent": 100}
SECRET_JWK = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYw", "kid": "secret", "alg": "HS256"}


@functools.cache
def private(name: str) -> Any:  # noqa: ANN401 - of any kind
    """A private key, generated once for all tests."""
    if name == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    if name == "ed":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 1024 if name == "weak" else 2048)


def costly() -> dict[str, Any]:
    """A public key with an exponent as long as its modulus, so that verifying a signature takes milliseconds."""
    numbers = private("rsa").public_key().public_numbers()
    exponent = rsa.RSAPublicNumbers(e=numbers.n - 2, n=numbers.n).public_key()
    return {**json.loads(RSAAlgorithm.to_jwk(exponent)), "kid": "costly"}


def public(name: str) -> dict[str, Any]:
    """The public key as JWK, with its name as key ID."""
    kinds: dict[str, Any] = {"ec": ECAlgorithm, "ed": OKPAlgorithm}
    document: dict[str, Any] = json.loads(kinds.get(name, RSAAlgorithm).to_jwk(private(name).public_key()))
    return document | {"kid": name}


class Issuer:
    """An issuer that serves a key set; responses wait for ``gate``."""

    def __init__(self) -> None:
        self.body: object = {
            "keys": [*map(public, ("rsa", "ec", "ed", "weak")), costly(), SECRET_JWK, {"kty": "RSA"}, 1]
        }
        self.status = "200 OK"
        self.requests: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
            await self.gate.wait()
            body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
            head = f"HTTP/1.1 {self.status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def guarded(more: str = "", *, has_jwks: bool = True, callers: str = "*") -> AsyncIterator[tuple[Stage, Issuer]]:
    """A service with a pod, behind an activator that requires tokens of an issuer."""
    issuer = Issuer()
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0)
    issuer.port = server.sockets[0].getsockname()[1]
    own = f"http://127.0.0.1:{issuer.port}"
    keys = f"issuer={ISSUER}, jwks={issuer.url}" if has_jwks else f"issuer={own}"
    async with server, staged() as stage:
        await stage.revision("hello-00001", slots=0)
        await stage.route(
            WHOLE, annotations={JWT_ANNOTATION: f"{keys}, audience={AUDIENCE}{more}", ALLOW_FROM_ANNOTATION: callers}
        )
        await stage.pod_seen("pod")
        yield stage, issuer


def token(
    signer: str | bytes = "rsa",
    *,
    alg: str = "RS256",
    kid: str | None = "",
    life_s: float = 600.0,
    head: dict[str, Any] | None = None,
    **claims: Any,  # noqa: ANN401 - JSON
) -> str:
    default_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + life_s}
    body = {name: value for name, value in {**default_claims, **claims}.items() if value is not None}
    named = {"kid": kid or signer} if kid is not None else {}
    key = private(signer) if isinstance(signer, str) else signer
    return jwt.encode(body, key, algorithm=alg, headers={**named, **(head or {})})


async def send_with_token(stage: Stage, text: str | None, *more: str) -> HttpResponse:
    headers = [] if text is None else [f"Authorization: Bearer {text}"]
    return await send_request(stage.public, headers=[*headers, *more])


@pytest.mark.parametrize(
    "make",
    [
        token,
        lambda: token(alg="PS256"),
        lambda: token(alg="RS512"),
        lambda: token("ec", alg="ES256"),
        lambda: token("ed", alg="EdDSA"),
        lambda: token(aud=["other", AUDIENCE]),
        lambda: token(life_s=-20.0),
        lambda: token(nbf=time.time() + 20),
    ],
    ids=["RS256", "PS256", "RS512", "ES256", "EdDSA", "audiences", "skew-behind", "skew-ahead"],
)
async def test_valid_token_of_issuer_is_accepted(make: Callable[[], str]) -> None:
    text = make()
    async with guarded() as (stage, issuer):
        assert (await send_with_token(stage, text)).body == "pod"
        assert (await send_with_token(stage, text)).body == "pod"
        assert issuer.requests == ["/keys"]


def unsigned(**head: object) -> str:
    """A token without a signature, which libraries accept if they trust the header."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 600}
    parts = [base64.urlsafe_b64encode(json.dumps(section).encode()).rstrip(b"=").decode() for section in (head, claims)]
    return ".".join([*parts, ""])


def confused() -> str:
    """A token with an HMAC whose secret is the public key."""
    pem = private("rsa").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = unsigned(alg="HS256", kid="rsa").rstrip(".")
    digest = hmac.new(pem, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: None, "send Authorization: Bearer TOKEN"),
        (lambda: "", "segments"),
        (lambda: "x", "Not enough segments"),
        (lambda: "a.b.c", "cannot be read|Invalid|segments"),
        (lambda: token("new", kid="rsa"), "Signature verification failed"),
        (lambda: token(life_s=-120.0), "expired"),
        (lambda: token(nbf=time.time() + 3600), "not valid yet"),
        (lambda: token(exp=None), "exp"),
        (lambda: token(exp="soon"), "cannot be read|exp"),
        (lambda: token(exp=float("inf")), "expired|cannot be read|exp"),
        (lambda: token(exp=float("nan")), "expired|cannot be read|exp"),
        (lambda: token(nbf=float("nan")), "cannot be read|not valid yet|nbf"),
        (lambda: token(iss="https://other.example.com"), "issuer"),
        (lambda: token(aud="other"), "udience"),
        (lambda: token(aud=None), "aud"),
        (lambda: token(iss=None), "iss"),
        (lambda: unsigned(alg="none", kid="rsa"), "algorithm is none of its key"),
        (lambda: unsigned(alg="None", kid="rsa"), "algorithm is none of its key"),
        (lambda: unsigned(kid="rsa"), "algorithm is none of its key|alg"),
        (confused, "algorithm is none of its key"),
        (lambda: token("ec", alg="ES256", kid="rsa"), "algorithm is none of its key"),
        (lambda: token(kid="secret"), "key is unknown"),
        (lambda: token(b"secret-secret-secret-secret-sec!", alg="HS256", kid="secret"), "key is unknown"),
        (lambda: token(kid="weak"), "key is unknown"),
        (lambda: token(kid="costly"), "key is unknown"),
        (lambda: token(kid="../../../etc/passwd"), "key is unknown"),
        (lambda: unsigned(alg="RS256", kid=["rsa"]), "Key ID"),
        (lambda: token(head={"jku": "http://127.0.0.1/keys", "kid": "new"}), "key is unknown"),
        (lambda: token(head={"jwk": public("rsa"), "kid": "new"}), "key is unknown"),
        (lambda: token(kid=None), "key is unknown"),
        (lambda: token(head={"crit": ["x"], "x": 1}), "extensions|crit"),
        (lambda: token(pad="x" * 9000), "more than 8192 bytes"),
        (lambda: "[" * 8000 + ".a.b", "cannot be read|Invalid|segments"),
        (lambda: base64.urlsafe_b64encode(b"[" * 5000).decode() + ".a.b", "cannot be read|Invalid|segments"),
    ],
)
async def test_invalid_token_is_rejected_with_reason(make: Callable[[], str | None], why: str) -> None:
    async with guarded() as (stage, _):
        refused = await send_with_token(stage, make())
        assert refused.status == 401, refused
        assert any(text in refused.body for text in why.split("|")), refused.body
        assert refused.headers["www-authenticate"].startswith('Bearer realm="default/hello"')
        assert not stage.pods[0].heads


async def test_request_with_two_tokens_is_rejected() -> None:
    async with guarded() as (stage, _):
        assert (await send_with_token(stage, token(), f"Authorization: Bearer {token()}")).status == 401


async def test_claims_are_sent_to_app_and_cannot_be_forged() -> None:
    async with guarded(", claims=sub+groups+email_verified+missing") as (stage, _):
        text = token(sub="Bob\r\nX-Evil: 1 é", groups=["a", "b"], email_verified=True)
        forged = ("X-Jwt-Claim-Sub: root", "x-jwt-claim-admin: 1", "User-Agent: kube-probe/1")
        assert (await send_with_token(stage, text, *forged)).status == 200
        head = stage.pods[0].heads[-1]
        assert "x-jwt-claim-sub: Bob%0D%0AX-Evil: 1 %C3%A9\r\n" in head
        assert "x-jwt-claim-groups: a,b\r\n" in head
        assert "x-jwt-claim-email-verified: true\r\n" in head
        assert "root" not in head
        assert "admin" not in head


async def test_service_without_jwt_rule_retains_claim_headers() -> None:
    async with staged() as stage:
        await stage.service(slots=0)
        await stage.pod_seen("pod")
        assert (await send_with_token(stage, None, "X-Jwt-Claim-Sub: own")).status == 200
        assert "X-Jwt-Claim-Sub: own" in stage.pods[0].heads[-1]


async def test_rotated_keys_are_fetched_once_and_unknown_key_ids_cause_no_fetches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarded() as (stage, issuer):
        assert (await send_with_token(stage, token())).status == 200
        issuer.body = {"keys": [public("rsa"), public("new")]}
        # During the pause after a fetch, an unknown key ID is rejected without a fetch.
        assert (await send_with_token(stage, token("new"))).status == 401
        assert len(issuer.requests) == 1
        monkeypatch.setattr(jwtkeys, "_PAUSE_S", 0.0)
        assert (await send_with_token(stage, token("new"))).status == 200
        monkeypatch.setattr(jwtkeys, "_PAUSE_S", 3600.0)
        for number in range(20):
            assert (await send_with_token(stage, token("new", kid=f"x{number}"))).status == 401
        assert len(issuer.requests) == 2


async def test_requests_wait_for_first_keys_without_blocking_other_services() -> None:
    async with guarded() as (stage, issuer):
        issuer.gate.clear()
        waiting = [asyncio.create_task(send_with_token(stage, token())) for _ in range(5)]
        await until(lambda: issuer.requests)
        await stage.route(WHOLE, name="other")
        assert (await send_request(stage.public, host="other.default.localhost")).status == 200
        assert not any(task.done() for task in waiting)
        issuer.gate.set()
        assert [(await task).status for task in waiting] == [200] * 5
        assert len(issuer.requests) == 1


def is_public(stage: Stage) -> bool:
    site = stage.activator.ingress.routes.find(Listener.PUBLIC, HOST)
    return site is not None and site.access is None


async def test_request_that_waited_for_keys_is_freed_after_service_became_public() -> None:
    async with guarded() as (stage, issuer):
        issuer.gate.clear()
        waiting = asyncio.create_task(send_with_token(stage, token()))
        await until(lambda: issuer.requests)
        opened = {"metadata": {"annotations": {JWT_ANNOTATION: None, ALLOW_FROM_ANNOTATION: None}}}
        await stage.cluster.patch(ROUTE, "default", "hello", patch=opened)
        await until(lambda: is_public(stage))
        issuer.gate.set()
        assert (await waiting).body == "pod"

        def is_freed() -> bool:
            gc.collect()
            return not any(isinstance(instance, Exchange) for instance in gc.get_objects())

        await until(is_freed)


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        ("500 Internal Server Error", b"", "500"),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", b"", "302"),
        ("200 OK", b"no json", "Expecting value"),
        ("200 OK", b"[]", "not a JSON object"),
        ("200 OK", b"{}", "not a key set"),
        ("200 OK", b'{"keys": []}', "no public key"),
        ("200 OK", b"[" * 100_000, "nested"),
        ("200 OK", b"x" * 300_000, "more than"),
    ],
)
async def test_unavailable_keys_return_503_and_log_one_reason(
    status: str, body: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded() as (stage, issuer):
        issuer.status, issuer.body = status, body
        first, second = await send_with_token(stage, token()), await send_with_token(stage, token())
        assert (first.status, second.status) == (503, 503)
        assert second.body == "service default/hello cannot check tokens now: its issuer's keys are not available\n"
        # The reason is only in the log.
        (logged,) = [record.__dict__ for record in caplog.records if record.message == "jwks.unavailable"]
        assert logged["url"] == issuer.url
        assert why in logged["error"]
        assert not stage.pods[0].heads


async def test_cached_keys_are_used_while_issuer_is_unavailable_until_they_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarded() as (stage, issuer):
        assert (await send_with_token(stage, token())).status == 200
        issuer.status = "503 Away"
        monkeypatch.setattr(jwtkeys, "_REFRESH_S", -1.0)
        monkeypatch.setattr(jwtkeys, "_PAUSE_S", 0.0)
        for _ in range(3):
            assert (await send_with_token(stage, token())).status == 200
        await until(lambda: len(issuer.requests) > 1)
        monkeypatch.setattr(jwtkeys, "_KEPT_S", 0.0)
        assert (await send_with_token(stage, token())).status == 503


async def test_call_during_completion_of_a_fetch_waits_for_the_next_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwtkeys, "_PAUSE_S", 0.0)
    issuer, is_called = Issuer(), asyncio.Event()
    async with await asyncio.start_server(issuer.serve, "127.0.0.1", 0) as server:
        issuer.port = server.sockets[0].getsockname()[1]
        keys = jwtkeys.KeySet(issuer.url, ISSUER, clock=asyncio.get_running_loop().time)

        def call_again() -> None:
            assert keys.call_after_fetch(is_called.set)

        keys.call_after_fetch(call_again)
        await until(is_called.is_set)
    assert len(issuer.requests) == 2


async def test_unresponsive_issuer_returns_503_after_fetch_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwtkeys, "_FETCH_S", 0.05)
    monkeypatch.setattr(jwtkeys, "_FAILED_PAUSE_S", 0.0)
    async with guarded() as (stage, issuer):
        issuer.gate.clear()
        assert (await send_with_token(stage, token())).status == 503
        issuer.gate.set()


async def test_fetch_times_out_if_issuer_sends_single_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the fetch ends too; otherwise a few such issuers would occupy all threads."""
    is_disconnected = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"X")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        is_disconnected.set()

    monkeypatch.setattr(jwtkeys, "_FETCH_S", 0.1)
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        keys = jwtkeys.KeySet(url, ISSUER, clock=asyncio.get_running_loop().time)
        assert keys.call_after_fetch(lambda: None)
        async with asyncio.timeout(60):
            await is_disconnected.wait()
        await until(lambda: bool(keys.failure))


async def test_unresponsive_issuers_do_not_delay_others() -> None:
    silent, responsive = Issuer(), Issuer()
    silent.gate.clear()
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        loop.set_default_executor(pool)
        async with (
            await asyncio.start_server(silent.serve, "127.0.0.1", 0) as new_server,
            await asyncio.start_server(responsive.serve, "127.0.0.1", 0) as other,
        ):
            silent.port, responsive.port = (server.sockets[0].getsockname()[1] for server in (new_server, other))
            urls = [f"{silent.url}/{number}" for number in range(8)]
            sets = [jwtkeys.KeySet(url, ISSUER, clock=loop.time) for url in (*urls, responsive.url)]
            assert all(each.call_after_fetch(lambda: None) for each in sets)
            await until(lambda: sets[-1].is_usable)
            assert not any(each.failure for each in sets)
            silent.gate.set()
            await until(lambda: all(each.is_usable for each in sets))


@pytest.mark.parametrize(("is_own", "status"), [(True, 200), (False, 503)])
async def test_keys_are_discovered_by_openid_configuration_of_same_issuer(is_own: bool, status: int) -> None:
    async with guarded(has_jwks=False) as (stage, issuer):
        own = f"http://127.0.0.1:{issuer.port}"
        configuration = {"issuer": own if is_own else "https://other", "jwks_uri": issuer.url, "keys": [public("rsa")]}
        issuer.body = configuration
        assert (await send_with_token(stage, token(iss=own))).status == status
        assert issuer.requests[0] == "/.well-known/openid-configuration"


async def test_invalid_jwt_rule_returns_503() -> None:
    async with staged() as stage:
        await stage.revision("hello-00001", slots=0)
        await stage.route(WHOLE, annotations={JWT_ANNOTATION: "issuer=x"})
        refused = await send_with_token(stage, token())
        assert refused.status == 503
        assert "its annotation serving.dev/jwt cannot be read" in refused.body


async def test_jwt_and_allowed_caller_are_both_required() -> None:
    async with guarded(callers="namespace/team") as (stage, _):
        assert (await send_with_token(stage, token())).status == 403
