"""Requests the digest of an image tag from its registry (OCI distribution-spec 1.1).

Requests use HTTPS. Plain HTTP is used only for registries without TLS on this machine or in a ``.local`` domain.
Trusted are the certificates of the system, those of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``, and the cluster's
authority. ``HTTPS_PROXY`` is used.
"""

import hashlib
import re
import ssl
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from serving.core.model.errors import UNREADABLE, ServingError
from serving.core.model.imagereference import ImageReference

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_HUB_HOST = "registry-1.docker.io"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# Larger than any manifest or token.
_BODY_BYTES_MAX = 2**22
_CLUSTER_AUTHORITY = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class RegistryError(ServingError):
    """A registry returned no digest. ``is_refusal``: it rejected the credentials, or requires credentials."""

    def __init__(self, why: str, *, is_refusal: bool = False) -> None:
        self.is_refusal = is_refusal
        super().__init__(why)


class _Token(msgspec.Struct, frozen=True):
    """The response of an authorization service. The token is in either of two fields."""

    token: str = ""
    access_token: str = ""


def registry_session() -> aiohttp.ClientSession:
    """An HTTP session for ``digest_of``; the caller closes it."""
    tls = ssl.create_default_context()
    if _CLUSTER_AUTHORITY.exists():
        tls.load_verify_locations(_CLUSTER_AUTHORITY)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), trust_env=True)


async def digest_of(session: aiohttp.ClientSession, reference: ImageReference, *, auth: str = "") -> str:
    """The digest of a tag, "sha256:..."; ``auth`` is NAME:PASSWORD in base64, "" for none.

    Raises:
        RegistryError: when the registry returns no digest, or cannot be reached.
    """
    host = _HUB_HOST if reference.registry == "docker.io" else reference.registry
    url = f"{host}/v2/{reference.repository}/manifests/{reference.tag}"
    try:
        try:
            return await _digest_at(session, f"https://{url}", auth=auth)
        except aiohttp.ClientConnectorError:
            if not _may_be_plain(host):
                raise
            return await _digest_at(session, f"http://{url}", auth=auth)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise RegistryError(f"{host}: {error}") from error


def _may_be_plain(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    return name in ("localhost", "::1") or name.startswith("127.") or name.endswith((".localhost", ".local"))


async def _digest_at(session: aiohttp.ClientSession, url: str, *, auth: str) -> str:
    headers, digest = {"Accept": _MANIFESTS}, ""
    for _ in range(2):
        async with session.head(url, headers=headers, allow_redirects=True) as response:
            challenge = response.headers.get("WWW-Authenticate", "")
            if response.status == HTTPStatus.UNAUTHORIZED and "Authorization" not in headers and challenge:
                headers["Authorization"] = await _authorization(
                    session, challenge, auth=auth, may_be_plain=url.startswith("http://")
                )
                continue
            if response.status != HTTPStatus.OK:
                why = f"{url}: {response.status} {response.reason}"
                raise RegistryError(why, is_refusal=response.status in _REFUSED)
            digest = response.headers.get("Docker-Content-Digest", "")
        break
    if not digest:
        async with session.get(url, headers=headers) as response:
            response.raise_for_status()
            digest = f"sha256:{hashlib.sha256(await _body(response)).hexdigest()}"
    if not _DIGEST.match(digest):
        raise RegistryError(f"{url}: {digest[:80]!r} is not a sha256 digest")
    return digest


async def _authorization(session: aiohttp.ClientSession, challenge: str, *, auth: str, may_be_plain: bool) -> str:
    """The header that answers a registry's challenge.

    Credentials are sent over TLS only, because otherwise an attacker could read or redirect them.
    """
    scheme, _, rest = challenge.partition(" ")
    basic = f"Basic {auth}"
    if scheme.lower() != "bearer":
        if not auth:
            raise RegistryError("the registry requires credentials", is_refusal=True)
        return basic
    values = dict(_CHALLENGE.findall(rest))
    realm = values.get("realm", "")
    if not realm.startswith(("https://", "http://") if may_be_plain else "https://"):
        raise RegistryError(f"the registry names no token server: {challenge[:200]!r}")
    parameters = {key: values[key] for key in ("service", "scope") if key in values}
    async with session.get(realm, params=parameters, headers={"Authorization": basic} if auth else {}) as response:
        if response.status != HTTPStatus.OK:
            raise RegistryError(f"{realm}: {response.status} {response.reason}", is_refusal=response.status in _REFUSED)
        try:
            token = msgspec.json.decode(await _body(response), type=_Token)
        except UNREADABLE as error:
            raise RegistryError(f"{realm}: no token in the response") from error
    return f"Bearer {token.token or token.access_token}"


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            raise RegistryError(f"{response.url.host}: a response above {_BODY_BYTES_MAX} bytes")
    return bytes(body)
