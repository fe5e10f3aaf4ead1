"""The targets of fuzzing: functions of bytes for each input that others give, with seeds.

A target returns, or raises one of the errors that its callers handle; anything else is a defect. Seeds are valid inputs to change.
``corpus/NAME`` keeps each input that once failed, in hexadecimal.
"""

import asyncio
import contextlib
import functools
import gzip
import io
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from multidict import MultiDict

from serving.activator.slots.messages import Ask, Frames, PeerHello, encode
from serving.cluster.kinds import CONFIG_MAP, POD, SERVING_SERVICE
from serving.home.admission.admission import admit
from serving.home.apiserver.content import decode_body, duplicate_fields
from serving.home.apiserver.portforward import SpdyCodec, SpdyError
from serving.home.apiserver.requests import Fault, target_of
from serving.home.apiserver.writing import Sent, create, patch
from serving.home.images.archive import open_archive
from serving.home.images.layers import LayerLimits, Unpacker
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.model.errors import ClusterError, InvalidValue, JournalDamaged, NewerFormat
from serving.model.objects import Object
from serving.proxy.http1.lines import BadHeaderLine
from serving.proxy.http1.requesthead import RequestRefusal, read_request_head
from serving.proxy.server.clienthello import BadClientHello, read_server_name
from serving.scaling.scaler.replay import read_record
from serving.wire.frames import (
    ActivatorStats,
    PodStat,
    RevisionStat,
    decode_activator_stats,
    decode_pod_stat,
    decode_relayed_stats,
    encode_activator_stats,
    encode_pod_stat,
)
from tests.integration.image_stage import folder_of, oci_archive, tar_of
from tests.property.test_clienthello import real
from tests.unit.proxy.wires import Bench

CORPUS = Path(__file__).with_name("corpus")
# In memory, where there is such a folder: a disk takes ten times as long.
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - folders with names of their own
_LIMITS = LayerLimits(bytes_max=2**20, entries_max=500)
_ADMIT = functools.partial(admit, is_one_machine=True)
_POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "command": ["x"]}]}}
_MAP = {"metadata": {"name": "m"}, "data": {"a": "b"}}
_SERVICE = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": {"name": "s", "annotations": {"serving.dev/tcp": "5432"}},
    "spec": {
        "template": {
            "metadata": {"annotations": {"autoscaling.knative.dev/target": "5"}},
            "spec": {
                "containers": [{"image": "i", "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 80}]}]
            },
        },
        "traffic": [{"percent": 100, "latestRevision": True, "tag": "new"}],
    },
}

_JSON = json.dumps
_HEAD = b"POST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nX-A: b\r\n\r\nok"
_CHUNKED = (
    b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n2;x\r\nok\r\n0\r\nA: b\r\n\r\n"
)
_MERGE = _JSON({"data": {"a": None, "b": "c"}, "spec": {"template": {"spec": {"containers": []}}}}).encode()
_OPERATIONS = _JSON(
    [
        {"op": "add", "path": "/data/x", "value": "y"},
        {"op": "move", "from": "/data/a", "path": "/data/-"},
        {"op": "test", "path": "/a/0", "value": 1},
    ]
).encode()
_DIRECTIVES = _JSON(
    {"spec": {"containers": [{"name": "c", "$patch": "delete"}], "$setElementOrder/containers": [{"name": "c"}]}}
).encode()
_YAML = b"apiVersion: v1\nkind: ConfigMap\nmetadata: &m {name: m}\ndata:\n  a: !!str 1\n  <<: {b: c}\n"


class Target(msgspec.Struct, frozen=True):
    """A function of bytes, and valid inputs of it."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def inputs_of(name: str) -> list[bytes]:
    """The seeds of a target and its corpus."""
    kept = sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []
    return [*TARGETS[name].seeds, *(bytes.fromhex(path.read_text()) for path in kept)]


def _request_head(data: bytes) -> None:
    try:
        read_request_head(data, header_count_max=100)
    except (RequestRefusal, BadHeaderLine):
        return


def _connection(data: bytes) -> None:
    """A client's connection: whatever comes, whole requests are answered the same in any pieces."""
    whole, pieces = Bench(), Bench()
    whole.send([data])
    pieces.send([data[at : at + 7] for at in range(0, len(data), 7)])
    assert whole.seen() == pieces.seen()


def _stats(data: bytes) -> None:
    for decode in (decode_pod_stat, decode_activator_stats, decode_relayed_stats):
        try:
            decode(data)
        except (InvalidValue, NewerFormat):
            continue


def _slots(data: bytes) -> None:
    found: list[list[object]] = []
    for size in (len(data) or 1, 3):
        frames, seen = Frames(), list[object]()
        try:
            for at in range(0, len(data), size):
                seen.extend(frames.feed(data[at : at + size]))
        except (InvalidValue, NewerFormat):
            pass
        found.append(seen)
    # As texts: two NaN are not equal.
    assert repr(found[0]) == repr(found[1])


def _spdy(data: bytes) -> None:
    try:
        list(SpdyCodec().feed(data))
    except SpdyError:
        return


def _body(content_type: str, data: bytes) -> None:
    try:
        decode_body(data, content_type)
    except Fault:
        return
    duplicate_fields(data, content_type)


def _written(path: str, content_type: str, data: bytes) -> None:
    """A manifest that a user creates, in the API of one machine."""

    async def write() -> None:
        cluster = MemoryCluster(admit=_ADMIT)
        with contextlib.suppress(Fault, ClusterError):
            await create(cluster, target_of(path), Sent(MultiDict(), content_type, data))
        await cluster.close()

    asyncio.run(write())


def _patched(content_type: str, data: bytes) -> None:
    """A patch of a ConfigMap, a pod and a service."""

    async def write() -> None:
        cluster = MemoryCluster(admit=_ADMIT)
        for kind, body in ((CONFIG_MAP, _MAP), (POD, _POD), (SERVING_SERVICE, _SERVICE)):
            made: Object = {**body, "metadata": {**body["metadata"], "namespace": "default"}}  # type: ignore[dict-item]
            await cluster.create(kind, made)
            group = f"apis/{kind.group}/{kind.version}" if kind.group else "api/v1"
            target = target_of(f"/{group}/namespaces/default/{kind.plural}/{made['metadata']['name']}")
            query = MultiDict({"fieldManager": "fuzz"} if "apply" in content_type else {})
            try:
                await patch(cluster, target, Sent(query, content_type, data))
            except (Fault, ClusterError):
                continue
        await cluster.close()

    asyncio.run(write())


def _names(folder: str | Path) -> list[str]:
    return [path.name for path in Path(folder).iterdir()]


def _layer(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        root = Path(name) / "a" / "root"
        root.mkdir(parents=True)
        with contextlib.suppress(InvalidValue, OSError):
            Unpacker(root, _LIMITS).unpack(io.BytesIO(data))
        assert _names(name) == ["a"]
        assert _names(root.parent) == ["root"]


def _archive(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path = Path(name) / "a.tar"
        path.write_bytes(data)
        with contextlib.suppress(InvalidValue, OSError), open_archive(path, scratch=Path(name)) as images:
            assert images is not None
        assert _names(name) == ["a.tar"]


def _journal(data: bytes) -> None:
    async def replay() -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
            path = Path(name) / "journal.db"
            path.write_bytes(data)
            try:
                journal = Journal(path)
            except (JournalDamaged, NewerFormat, ClusterError):
                return
            try:
                cluster = MemoryCluster(journal)
            except (JournalDamaged, NewerFormat, ClusterError):
                await journal.close()
                return
            await cluster.close()

    asyncio.run(replay())


def _decision(data: bytes) -> None:
    try:
        read_record(data)
    except (InvalidValue, NewerFormat):
        return


def _seed_journal() -> bytes:
    async def write(path: Path) -> None:
        cluster = MemoryCluster(Journal(path))
        for kind, body in ((CONFIG_MAP, _MAP), (SERVING_SERVICE, _SERVICE)):
            await cluster.create(kind, {**body, "metadata": {**body["metadata"], "namespace": "default"}})  # type: ignore[dict-item]
        await cluster.close()

    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path = Path(name) / "journal.db"
        asyncio.run(write(path))
        # The log of SQLite is part of it: a copy has all.
        copy = sqlite3.connect(Path(name) / "copy.db")
        source = sqlite3.connect(path)
        source.backup(copy)
        source.close()
        copy.close()
        return (Path(name) / "copy.db").read_bytes()


def _seed_stats() -> tuple[bytes, ...]:
    pod = PodStat(at_s=1.0, concurrency=1.5, request_count=3, gauges={"waiting": 2.0}, pod="p")
    revision = RevisionStat(namespace="n", revision="r", concurrency=1.0, request_count=1)
    return encode_pod_stat(pod), encode_activator_stats(ActivatorStats(stats=[revision]))


def _seed_archive() -> bytes:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path = Path(name) / "a.tar"
        oci_archive(path, [tar_of([("f", b"x", 0o644)])])
        return path.read_bytes()


def _seed_layers() -> Iterator[bytes]:
    plain = tar_of([folder_of("d"), ("d/f", b"text", 0o644), ("d/.wh.g", b"", 0o644), (".wh..wh..opq", b"", 0o644)])
    yield plain
    yield gzip.compress(plain)


def _client_hello(data: bytes) -> None:
    with contextlib.suppress(BadClientHello):
        read_server_name(data)


TARGETS: dict[str, Target] = {
    "client-hello": Target(_client_hello, (real("db.example.com"), real(None))),
    "http1-head": Target(_request_head, (_HEAD, _CHUNKED)),
    "http1-connection": Target(_connection, (_HEAD * 2, _CHUNKED + _HEAD)),
    "stat-frames": Target(_stats, _seed_stats()),
    "slot-messages": Target(
        _slots, (encode(PeerHello(index=1)) + encode(Ask(key=("ns", "r"), waiting_count=2, waited_s=0.5)),)
    ),
    "port-forward": Target(_spdy, (SpdyCodec.data(1, b"x"), SpdyCodec.reset(1), SpdyCodec.pong(2))),
    "body-json": Target(functools.partial(_body, "application/json"), (_JSON(_SERVICE).encode(), _MERGE)),
    "body-yaml": Target(functools.partial(_body, "application/yaml"), (_YAML,)),
    "body-protobuf": Target(
        functools.partial(_body, "application/vnd.kubernetes.protobuf"), (b"k8s\0\n\r\n\2v1\x12\7PodList",)
    ),
    "manifest-service": Target(
        functools.partial(_written, "/apis/serving.knative.dev/v1/namespaces/default/services", "application/json"),
        (_JSON(_SERVICE).encode(),),
    ),
    "manifest-pod": Target(
        functools.partial(_written, "/api/v1/namespaces/default/pods", "application/json"), (_JSON(_POD).encode(),)
    ),
    "manifest-config": Target(
        functools.partial(_written, "/api/v1/namespaces/default/configmaps", "application/yaml"), (_YAML,)
    ),
    "patch-merge": Target(functools.partial(_patched, "application/merge-patch+json"), (_MERGE,)),
    "patch-json": Target(functools.partial(_patched, "application/json-patch+json"), (_OPERATIONS,)),
    "patch-strategic": Target(
        functools.partial(_patched, "application/strategic-merge-patch+json"), (_MERGE, _DIRECTIVES)
    ),
    "patch-apply": Target(functools.partial(_patched, "application/apply-patch+yaml"), (_JSON(_MAP).encode(),)),
    "image-layer": Target(_layer, tuple(_seed_layers())),
    "image-archive": Target(_archive, (_seed_archive(),)),
    "journal": Target(_journal, (_seed_journal(),)),
    "decision-log": Target(_decision, (b'{"version":1}',)),
}
