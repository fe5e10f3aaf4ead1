"""Orders certificates from an ACME server (RFC 8555) with HTTP-01 challenges. All calls block.

The account belongs to one directory URL; its key and the files of challenges are below a private folder. An activator answers a
challenge from its file. The client library is ``acme``, certbot's; the extra ``acme`` installs it.
"""

import contextlib
import datetime as dt
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

import josepy
import msgspec
import requests
from acme import challenges, client, crypto_util, messages
from acme import errors as acme_errors
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from josepy.jwa import ES256
from josepy.jwk import JWKEC
from josepy.util import ComparableECKey

from serving.core.model.errors import ServingError
from serving.home.state import write_private

_TIMEOUT_S = 30
# Problems of the server or the account, and of no single host.
_OF_SERVER = frozenset({"rateLimited", "serverInternal", "accountDoesNotExist", "badNonce", "externalAccountRequired"})
_TOO_MANY = 429
_SERVER_ERROR = 500


class OrderFailed(ServingError):
    """The server issued no certificate.

    ``of_server``: the cause is the server or the account, so orders for other hosts would fail too. ``retry_after_s``
    is the pause that the server requests, in seconds, or 0.
    """

    def __init__(self, reason: str, *, of_server: bool, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.of_server = of_server
        self.retry_after_s = retry_after_s


class IssuedPair(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with its chain, and its key, in PEM."""

    certificate_pem: bytes
    key_pem: bytes


class SuggestedRenewal(msgspec.Struct, frozen=True, kw_only=True):
    """A server's suggestion for a renewal.

    ``at_s`` is when to renew the certificate, in unix seconds, or None. ``ask_after_s`` is the number of seconds until
    the next query.
    """

    at_s: float | None
    ask_after_s: float


class _Account(msgspec.Struct, frozen=True, kw_only=True):
    """A registered account: its key in PEM, and its URL."""

    key_pem: str
    url: str


class AcmeOrders:
    """Orders certificates from the ACME server at a directory URL, using the account in ``folder``."""

    def __init__(self, directory_url: str, folder: Path, *, challenge_folder: Path) -> None:
        self._directory_url = directory_url
        self._challenges = challenge_folder
        digest = hashlib.sha256(directory_url.encode()).hexdigest()[:16]
        self._account_path = folder / f"account-{digest}.json"
        self._retry_after_s = 0.0

    def issue(self, hosts: Sequence[str]) -> IssuedPair:
        """Order a certificate for hosts, with a new key. Raises ``OrderFailed``."""
        self._retry_after_s = 0.0
        try:
            return self._issue(hosts)
        except messages.Error as error:
            if error.code == "accountDoesNotExist":
                self._account_path.unlink(missing_ok=True)
            raise self._failed(str(error), of_server=error.code in _OF_SERVER) from error
        except acme_errors.ValidationError as error:
            raise self._failed(_validation_text(error), of_server=False) from error
        except acme_errors.IssuanceError as error:
            raise self._failed(str(error.error), of_server=error.error.code in _OF_SERVER) from error
        except acme_errors.TimeoutError as error:
            raise self._failed("the order was not complete in time", of_server=False) from error
        except (acme_errors.Error, josepy.errors.Error, requests.RequestException, ValueError) as error:
            raise self._failed(f"{self._directory_url}: {_transport_text(error)}", of_server=True) from error

    def _issue(self, hosts: Sequence[str]) -> IssuedPair:
        acme = self._client()
        key_pem = _pem(ec.generate_private_key(ec.SECP256R1()))
        order = acme.new_order(crypto_util.make_csr(key_pem, list(hosts)))
        with contextlib.ExitStack() as stack:
            for authorization in order.authorizations:
                if authorization.body.status != messages.STATUS_VALID:
                    challenge = _http_challenge(authorization)
                    stack.enter_context(self._published(acme, challenge))
                    acme.answer_challenge(challenge, challenge.response(acme.net.key))
            order = acme.poll_and_finalize(order)
        return IssuedPair(certificate_pem=order.fullchain_pem.encode(), key_pem=key_pem)

    def _client(self) -> client.ClientV2:
        """An ACME client for the account. A missing account is registered first."""
        account = self._account()
        key_pem = _pem(ec.generate_private_key(ec.SECP256R1())) if account is None else account.key_pem.encode()
        acme = self._connected(JWKEC(key=ComparableECKey(_private_key(key_pem))))
        if account is None:
            if acme.external_account_required():
                raise OrderFailed(
                    f"{self._directory_url} needs an external account, which is not supported", of_server=True
                )
            registration = acme.new_account(messages.NewRegistration(terms_of_service_agreed=True))
            account = _Account(key_pem=key_pem.decode(), url=registration.uri)
            write_private(self._account_path, msgspec.json.encode(account))
        acme.net.account = messages.RegistrationResource(uri=account.url, body=messages.Registration())
        return acme

    def _account(self) -> _Account | None:
        """The stored account; None without a file. Raises ``OrderFailed`` for an unreadable file, which stays."""
        path = self._account_path
        try:
            account = msgspec.json.decode(path.read_bytes(), type=_Account)
            _private_key(account.key_pem.encode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            expected = "a readable account: restore it from a backup, or move it away, and a new account is registered"
            raise OrderFailed(
                f"the account file {path} cannot be read ({error}); expected {expected}", of_server=True
            ) from error
        return account

    def _connected(self, key: JWKEC | None) -> client.ClientV2:
        net = client.ClientNetwork(key, alg=ES256, user_agent="serving", timeout=_TIMEOUT_S)
        net.session.hooks["response"].append(self._read_retry_after)
        return client.ClientV2(client.ClientV2.get_directory(self._directory_url, net), net)

    def suggest_renewal(self, certificate_pem: bytes) -> SuggestedRenewal:
        """Query when to renew a certificate (RFC 9773). Raises ``OrderFailed``."""
        try:
            at, again = self._connected(None).renewal_time(certificate_pem)
        except x509.ExtensionNotFound:
            # The query names the authority's key, which a private authority may leave out.
            return SuggestedRenewal(at_s=None, ask_after_s=math.inf)
        except (acme_errors.Error, josepy.errors.Error, requests.RequestException, ValueError) as error:
            raise OrderFailed(f"{self._directory_url}: {_transport_text(error)}", of_server=True) from error
        # The library's second time is a local one without a zone.
        ask_after_s = (again - dt.datetime.now(again.tzinfo)).total_seconds()
        return SuggestedRenewal(at_s=None if at is None else at.timestamp(), ask_after_s=ask_after_s)

    @contextlib.contextmanager
    def _published(self, acme: client.ClientV2, challenge: messages.ChallengeBody) -> Iterator[None]:
        """Publish the response to a challenge while the context is open. Activators serve it to the ACME server."""
        path = self._challenges / challenge.chall.encode("token")
        write_private(path, challenge.chall.validation(acme.net.key).encode())
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _read_retry_after(self, response: requests.Response, *_: object, **__: object) -> None:
        """Store the Retry-After of a failed response, because the errors of the client library omit headers."""
        text = response.headers.get("Retry-After", "")
        if response.status_code != _TOO_MANY and response.status_code < _SERVER_ERROR:
            return
        with contextlib.suppress(ValueError):
            self._retry_after_s = (
                float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
            )

    def _failed(self, reason: str, *, of_server: bool) -> OrderFailed:
        return OrderFailed(reason, of_server=of_server, retry_after_s=self._retry_after_s)


def _http_challenge(authorization: messages.AuthorizationResource) -> messages.ChallengeBody:
    for challenge in authorization.body.challenges:
        if isinstance(challenge.chall, challenges.HTTP01):
            return challenge
    raise OrderFailed(
        f"the server offers no HTTP-01 challenge for {authorization.body.identifier.value}", of_server=False
    )


def _validation_text(error: acme_errors.ValidationError) -> str:
    """The problems of all failed challenges in one line."""
    return "; ".join(
        f"{authorization.body.identifier.value}: {challenge.error.detail or challenge.error}"
        for authorization in error.failed_authzrs
        for challenge in authorization.body.challenges
        if challenge.error is not None
    )


def _transport_text(error: Exception) -> str:
    """Why a server gave no valid response: the innermost cause of a failed connection, or an HTTP status."""
    response = error.args[0] if error.args else None
    if isinstance(response, requests.Response):
        return f"the server responded with {response.status_code}"
    while error.__cause__ is not None or error.__context__ is not None:
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, Exception):
            break
        error = inner
    return str(error) or type(error).__name__


def _private_key(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the account's key is not an elliptic-curve key")
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
