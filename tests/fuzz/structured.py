"""Targets behind a signature, a digest or a handshake, as no changed bytes pass one; and the tokens themselves.

Input of the first: the parts behind it, separated by ``PARTS``. The target signs, names or wraps them as their sender
would.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import re
import tempfile
from pathlib import Path
from typing import cast

import jwt
import msgspec
from multidict import MultiDict
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from serving.activator.io.jwtcheck import BadToken, verify
from serving.activator.io.jwtkeys import SigningKey
from serving.activator.routing.sites import session_in_cookies
from serving.autoscaler.io.connection import StatsConnection
from serving.core.model.accessrules import JwtRule
from serving.core.model.errors import UNREADABLE, ClusterError, InvalidValue
from serving.core.model.identities import CallerIdentity
from serving.core.traffic.clients import client_address, network_of
from serving.core.traffic.traceparents import read_traceparent
from serving.home.apiserver.content import wanted
from serving.home.apiserver.requests import Fault, field_manager, target_of
from serving.home.containers.nameserver import NameResponses, failure
from serving.home.images.archive import open_archive
from serving.home.images.pullers import credentials_of
from serving.home.kubelet.container import RestartSettings
from serving.home.kubelet.replacements import ReplacementPauses
from serving.home.store.state import filter_of
from serving.net.aio.supervise import TaskOwner
from serving.net.wire.tokens import caller_token, read_caller_token

PARTS = b"\n--\n"
SECRET = b"a secret of thirty-two bytes and more"
_RULE = JwtRule(issuer="i", audiences=("x",), claims=("sub", "email"))
_KEYS = {"k": SigningKey(key=SECRET, algorithms=frozenset({"HS256"}))}
_CLEAN = re.compile(rb"[\x20-\x7e]*")
_CALLER = caller_token(SECRET, CallerIdentity(namespace="n", account="a", service="s"), until_s=1e9)
_CLAIMS = {"iss": "i", "aud": "x", "sub": "ann", "exp": 1e9}
_UPGRADE = (
    b"GET /stats HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _parts(data: bytes, count: int) -> list[bytes]:
    splits = data.split(PARTS, count - 1)
    return [*splits, *[b""] * (count - len(splits))]


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def changed_jwt(data: bytes) -> None:
    """A token of a client: no change of a valid one proves anything else."""
    try:
        verified = verify(data.decode("latin-1"), _RULE, _KEYS, at_s=0.0)
    except BadToken:
        return
    assert [header_line.value for header_line in verified.lines] == [b"ann"]


def changed_caller(data: bytes) -> None:
    """A token of a calling pod: no change of a valid one names another."""
    with contextlib.suppress(InvalidValue):
        caller_identity = read_caller_token(SECRET, data.decode("latin-1"), now_s=0.0)
        assert caller_identity == read_caller_token(SECRET, _CALLER, now_s=0.0)


def signed_jwt(data: bytes) -> None:
    """Head and claims as the issuer has signed them: what passes has the rule's issuer, audience and clean headers."""
    head, claims = _parts(data, 2)
    whole = _base64(head) + b"." + _base64(claims)
    signature = _base64(hmac.new(SECRET, whole, hashlib.sha256).digest())
    try:
        verified = verify((whole + b"." + signature).decode(), _RULE, _KEYS, at_s=0.0)
    except BadToken:
        return
    read = json.loads(claims)
    assert read["iss"] == "i"
    assert "x" in (read["aud"] if isinstance(read["aud"], list) else [read["aud"]])
    assert all(
        _CLEAN.fullmatch(header_line.value) and header_line.wire.count(b"\n") == 1 for header_line in verified.lines
    )


def signed_caller(data: bytes) -> None:
    """A caller's token with another identity: it is read as it was signed, or refused before."""
    try:
        namespace, account, service = (part.decode() for part in _parts(data, 3))
        text = caller_token(SECRET, CallerIdentity(namespace=namespace, account=account, service=service), until_s=9.0)
    except UnicodeDecodeError:
        return
    caller_identity = read_caller_token(SECRET, text, now_s=0.0)
    assert (caller_identity.namespace, caller_identity.account, caller_identity.service) == (
        namespace,
        account,
        service,
    )


class _Wire:
    """A transport that counts."""

    def __init__(self) -> None:
        self.is_closed = False
        self.written = b""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed


class _Sender:
    """Records the frames of a connection."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def handle(self, frame: bytes) -> None:
        self.received.append(bytes(frame))

    def malformed(self, error: InvalidValue) -> None:
        self.received.append(str(error).encode())


class _Host:
    """Admits every client."""

    tasks = TaskOwner()

    def opened(self, connection: StatsConnection) -> None:
        """Note nothing."""

    lost = opened

    def respond(self, protocol: ServerProtocol, request: Request, connection: StatsConnection) -> Response | None:
        response = protocol.accept(request)
        if response.status_code == 101:
            connection.sender = _Sender()  # type: ignore[assignment] # as it is used
        return response


def stat_connection(data: bytes) -> None:
    """A head and frames of a websocket: the same frames are taken in any pieces."""
    results: list[list[bytes] | None] = []
    for size in (len(data) or 1, 7):
        connection, wire = StatsConnection(_Host()), _Wire()
        connection.connection_made(wire)  # type: ignore[arg-type] # as it is used
        for at in range(0, len(data), size):
            if not wire.is_closed:
                connection.data_received(data[at : at + size])
        connection.connection_lost(None)
        sender = cast("_Sender | None", connection.sender)
        results.append(None if sender is None else sender.received)
    # Of a connection that is ended, the frames behind its end may have come with it.
    whole, pieces = results
    assert whole == pieces or (whole is not None and pieces is not None and whole[: len(pieces)] == pieces)


def dns_query(data: bytes) -> None:
    """A datagram of a pod: each response repeats its number and its question."""
    responses = NameResponses(inner="10.138.0.1", public="10.139.0.1")
    try:
        response = responses.respond(data, {"hello.example"}, {"api.default.svc.cluster.local"}) or failure(data)
    except InvalidValue:
        return
    assert response[:2] == data[:2]
    assert len(response) < len(data) + 32


def api_request(data: bytes) -> None:
    """The path, the query, the Accept and the User-Agent of a request."""
    path, query, accept, agent = (part.decode("latin-1") for part in _parts(data, 4))
    pairs = MultiDict([text.partition("=")[::2] for text in query.split("&")])
    for read in (
        lambda: filter_of(target_of(path).selection(pairs)),
        lambda: wanted(accept),
        lambda: field_manager(pairs, agent),
    ):
        with contextlib.suppress(Fault, ClusterError, InvalidValue):
            read()


def request_headers(data: bytes) -> None:
    """Headers of clients that activators read beside the head: any bytes are an address, a session and a trace, or none."""
    forwarded, cookie, trace = _parts(data, 3)
    for trusted in (True, False):
        network_of(client_address("10.0.0.1", [forwarded], trusts=lambda _, trusted=trusted: trusted))  # type: ignore[misc]
    session_in_cookies([cookie])
    read_traceparent(trace)


def pull_secret(data: bytes) -> None:
    """The credentials in a Secret of a pod's namespace, of any type."""
    for key in (".dockerconfigjson", ".dockercfg"):
        with contextlib.suppress(InvalidValue):
            credentials_of([{"metadata": {"name": "s"}, "data": {key: base64.b64encode(data).decode()}}])


def evictions(data: bytes) -> None:
    """The file of pauses after evictions: of what was read, no pause is longer than the longest."""
    pauses, longest_s = ReplacementPauses(RestartSettings()), RestartSettings().pause_max_s
    with contextlib.suppress(*UNREADABLE):
        pauses.read(data, ahead_s=100.0, now_s=10.0)
    assert pauses.due_s("d") <= 10.0 + longest_s
    pauses.evicted("d", began_s=11.0, at_s=12.0)
    assert pauses.due_s("d") <= 12.0 + longest_s


def _with_blobs(parts: list[bytes], folder: Path) -> None:
    """Write blobs, the last one first; each names those behind it as @1, @2 and so on, which become digests."""
    (folder / "blobs" / "sha256").mkdir(parents=True)
    known: list[bytes] = []
    for number in range(len(parts) - 1, -1, -1):
        part = parts[number]
        for at, digest in enumerate(known):
            part = part.replace(b"@%d" % (len(parts) - 1 - at), digest)
        name = hashlib.sha256(part).hexdigest()
        known.append(f"sha256:{name}".encode())
        (folder / "blobs" / "sha256" / name).write_bytes(part)
        if number == 0:
            (folder / "index.json").write_bytes(part)


def image_parts(data: bytes) -> None:
    """The index, manifests and config of an image, whose digests fit."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:  # noqa: S108 - a name of its own
        folder = Path(name)
        _with_blobs(_parts(data, 4), folder)
        with contextlib.suppress(InvalidValue, OSError), open_archive(folder) as images:
            for archived_image in images:
                assert all(layer.is_relative_to(folder) for layer in archived_image.layers)
                msgspec.json.encode(archived_image.config)


def _frame(opcode: int, payload: bytes) -> bytes:
    return bytes([opcode, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


_FRAMES = _frame(0x82, b"\x81\xa1a\x01") + _frame(0x89, b"p") + _frame(0x02, b"a") + _frame(0x80, b"b")
SEEDS = {
    "jwt": (jwt.encode(_CLAIMS, SECRET, headers={"kid": "k"}).encode(),),
    "caller-token": (_CALLER.encode(),),
    "signed-jwt": (
        PARTS.join(
            (b'{"alg":"HS256","kid":"k"}', b'{"iss":"i","aud":["x"],"exp":1e9,"nbf":0,"sub":"a","email":["b",1,true]}')
        ),
    ),
    "signed-caller": (PARTS.join((b"n", b"a", b"s")),),
    "stat-connection": (_UPGRADE + _FRAMES, _UPGRADE + _frame(0x82, b"x") + _frame(0x88, b"\x03\xe8end") + _FRAMES),
    "dns-query": (
        b"\1\2\1\0\0\1\0\0\0\0\0\0\3api\7default\3svc\7cluster\5local\0\0\1\0\1",
        b"\1\2\1\0\0\1\0\0\0\0\0\1\5hello\7example\0\0\x1c\0\1\0\0\x29\x10\0\0\0\0\0\0\0",
    ),
    "api-request": (
        PARTS.join(
            (
                b"/apis/serving.knative.dev/v1/namespaces/default/services/s/status",
                b"labelSelector=a in (b,c),!d,e!=f,g notin (h)&fieldSelector=metadata.name=x&fieldManager=me",
                b"application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                b"kubectl/v1.30",
            )
        ),
    ),
    "request-headers": (
        PARTS.join(
            (
                b"203.0.113.7, [2001:db8::1]:443, 10.0.0.2",
                b"a=b; serving-session=0123456789abcdef",
                b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )
        ),
    ),
    "pull-secret": (b'{"auths":{"r.example":{"auth":"YTpi"},"s":{"username":"a","password":"b"}}}',),
    "evictions": (b'{"d":{"end_count":1,"last_s":1.0,"due_s":2.0}}',),
    "image-parts": (
        PARTS.join(
            (
                b'{"manifests":[{"digest":"@1","annotations":{"org.opencontainers.image.ref.name":"a:b"}}]}',
                b'{"config":{"digest":"@2"},"layers":[{"digest":"@3"}]}',
                b'{"architecture":"amd64","os":"linux","config":{"Cmd":["a"],"Env":["A=b"],"User":"1:2"},"rootfs":{"diff_ids":["@3"]}}',
                b"layer",
            )
        ),
        PARTS.join(
            (
                b'{"manifests":[{"digest":"@1","mediaType":"application/vnd.oci.image.index.v1+json"}]}',
                b'{"manifests":[{"digest":"@2","platform":{"architecture":"amd64","os":"linux"}}]}',
                b'{"config":{"digest":"@3"},"layers":[]}',
                b"{}",
            )
        ),
    ),
}
RUNS = {
    "jwt": changed_jwt,
    "caller-token": changed_caller,
    "signed-jwt": signed_jwt,
    "signed-caller": signed_caller,
    "stat-connection": stat_connection,
    "dns-query": dns_query,
    "api-request": api_request,
    "request-headers": request_headers,
    "image-parts": image_parts,
    "pull-secret": pull_secret,
    "evictions": evictions,
}
