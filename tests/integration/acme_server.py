"""A small ACME server (RFC 8555) in this process, on 127.0.0.1: accounts, orders, HTTP-01 challenges, scripted errors.

Signatures are verified by certbot's library. It fetches challenges at the port of the activator, and signs with an authority of its own.
"""

import base64
import contextlib
import datetime as dt
import http.client
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from acme import jws
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from josepy.json_util import encode_b64jose
from josepy.jwk import JWK

DAYS = 90


class Refusal(Exception):
    """A problem document as a response."""

    def __init__(self, status: int, code: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, headers


class AcmeServer:
    """The server. ``refusals`` answer the next new orders, challenges of ``unauthorized`` hosts fail; ``orders`` are the hosts of each order, in order;
    ``renewal_s`` is the suggested time to renew, in a window of a second."""

    def __init__(self, *, challenge_port: int) -> None:
        self.challenge_port = challenge_port
        self.clock: Callable[[], float] = time.time
        self.refusals: list[Refusal] = []
        self.unauthorized: set[str] = set()
        self.orders: list[list[str]] = []
        self.renewal_s: float | None = None
        self.accounts: list[JWK] = []
        self._state: list[dict[str, Any]] = []
        self._nonces: set[str] = set()
        self._lock = threading.Lock()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.url = ""

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Run the server; yields the URL of its directory."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.respond(self, "GET")

            def do_HEAD(self) -> None:
                server.respond(self, "HEAD")

            def do_POST(self) -> None:
                server.respond(self, "POST")

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"{self.url}/directory"
        finally:
            listener.shutdown()
            listener.server_close()
            thread.join()

    def respond(self, request: BaseHTTPRequestHandler, method: str) -> None:
        """Respond to one request."""
        with self._lock:
            try:
                if method == "POST":
                    text = request.rfile.read(int(request.headers["Content-Length"]))
                    status, body, headers = self._post(request.path, text)
                elif request.path == "/directory":
                    names = {"newNonce": "nonce", "newAccount": "account", "newOrder": "order"}
                    status, headers = 200, {}
                    names |= {} if self.renewal_s is None else {"renewalInfo": "renewal"}
                    body = {name: f"{self.url}/{path}" for name, path in names.items()}
                elif request.path.startswith("/renewal/") and self.renewal_s is not None:
                    ends = [dt.datetime.fromtimestamp(self.renewal_s + second, dt.UTC).isoformat() for second in (0, 1)]
                    body = {"suggestedWindow": dict(zip(("start", "end"), ends, strict=True))}
                    status, headers = 200, {"Retry-After": "3600"}
                else:
                    status, body, headers = 200, None, {}
            except Refusal as refusal:
                status, headers = refusal.status, {"Content-Type": "application/problem+json", **refusal.headers}
                body = {"type": f"urn:ietf:params:acme:error:{refusal.code}", "detail": refusal.detail}
            nonce = secrets.token_urlsafe(16)
            self._nonces.add(nonce)
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        request.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Replay-Nonce": nonce}.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if method != "HEAD":
            request.wfile.write(content)

    def _post(self, path: str, text: bytes) -> tuple[int, Any, dict[str, str]]:
        signed = jws.JWS.json_loads(text)
        header = signed.signature.combined
        kid = header.kid
        key = header.jwk if kid is None else self.accounts[int(kid.rpartition("/")[2])]
        assert signed.verify(key)
        assert header.url == f"{self.url}{path}"
        nonce = encode_b64jose(header.nonce)
        if nonce not in self._nonces:
            raise Refusal(400, "badNonce", "an unknown nonce")
        self._nonces.remove(nonce)
        payload = json.loads(signed.payload) if signed.payload else {}
        kind, _, number = path.strip("/").partition("/")
        if kind == "account":
            assert payload["termsOfServiceAgreed"]
            self.accounts.append(key)
            return 201, {"status": "valid"}, {"Location": f"{self.url}/account/{len(self.accounts) - 1}"}
        if kind == "order" and not number:
            return self._new_order(payload)
        order = self._state[int(number)]
        if kind == "authorization":
            return 200, self._authorization(int(number)), {}
        if kind == "challenge":
            self._validate(order, key)
            return 200, self._challenge(int(number)), {"Link": f'<{self.url}/authorization/{number}>;rel="up"'}
        if kind == "finalize":
            order["chain"] = self._sign(base64.urlsafe_b64decode(payload["csr"] + "=="))
            order["status"] = "valid"
        if kind == "certificate":
            return 200, order["chain"], {"Content-Type": "application/pem-certificate-chain"}
        return 200, self._order(int(number)), {}

    def _new_order(self, payload: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        hosts = [identifier["value"] for identifier in payload["identifiers"]]
        self.orders.append(hosts)
        if self.refusals:
            raise self.refusals.pop(0)
        self._state.append({"host": hosts[0], "status": "pending", "token": secrets.token_urlsafe(16), "error": None})
        number = len(self._state) - 1
        return 201, self._order(number), {"Location": f"{self.url}/order/{number}"}

    def _order(self, number: int) -> dict[str, Any]:
        order = self._state[number]
        return {
            "status": order["status"],
            "identifiers": [{"type": "dns", "value": order["host"]}],
            "authorizations": [f"{self.url}/authorization/{number}"],
            "finalize": f"{self.url}/finalize/{number}",
            **({"certificate": f"{self.url}/certificate/{number}"} if "chain" in order else {}),
        }

    def _authorization(self, number: int) -> dict[str, Any]:
        order = self._state[number]
        status = "valid" if order["status"] in {"ready", "valid"} else order["status"]
        identifier = {"type": "dns", "value": order["host"]}
        return {"status": status, "identifier": identifier, "challenges": [self._challenge(number)]}

    def _challenge(self, number: int) -> dict[str, Any]:
        order = self._state[number]
        error = {"error": order["error"]} if order["error"] else {}
        status = {"pending": "pending", "invalid": "invalid"}.get(order["status"], "valid")
        url = f"{self.url}/challenge/{number}"
        return {"type": "http-01", "url": url, "token": order["token"], "status": status, **error}

    def _validate(self, order: dict[str, Any], key: JWK) -> None:
        """Fetch a challenge from the activator, with the host of the order."""
        connection = http.client.HTTPConnection("127.0.0.1", self.challenge_port, timeout=10)
        target = f"/.well-known/acme-challenge/{order['token']}"
        try:
            connection.request("GET", target, headers={"Host": order["host"]})
            response = connection.getresponse()
            status, text = response.status, response.read().decode()
        finally:
            connection.close()
        expected = f"{order['token']}.{encode_b64jose(key.thumbprint())}"
        is_right = (status, text) == (200, expected) and order["host"] not in self.unauthorized
        order["status"] = "ready" if is_right else "invalid"
        if not is_right:
            detail = f"{status} at {target}"
            order["error"] = {"type": "urn:ietf:params:acme:error:unauthorized", "detail": detail, "status": 403}

    def _sign(self, csr_der: bytes) -> bytes:
        csr = x509.load_der_x509_csr(csr_der)
        now = dt.datetime.fromtimestamp(self.clock(), dt.UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(name)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + dt.timedelta(days=DAYS))
            .add_extension(csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value, critical=False)
        )
        if self.renewal_s is not None:
            authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(authority, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)
