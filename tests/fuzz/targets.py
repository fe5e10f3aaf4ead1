"""Fuzz targets: functions of bytes for each kind of external input, with seeds.

A target returns, or raises one of the errors that its callers handle; anything else is a defect. Seeds are valid inputs
to change. ``corpus/NAME`` keeps each input that once failed, in hexadecimal.
"""

import asyncio
import base64
import contextlib
import functools
import gzip
import io
import json
import math
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from click.testing import CliRunner
from multidict import MultiDict

from serving.activator.slots.messages import Ask, Frames, PeerHello, encode
from serving.controller.revisions.revision_status import failure_to_keep
from serving.core.model import knative
from serving.core.model.errors import (
    ClusterError,
    InvalidValue,
    JournalDamaged,
    NewerFormat,
    ServingError,
    SettingsError,
)
from serving.core.model.objects import Object
from serving.core.model.rollout import tag_splits
from serving.core.model.rolloutcheck import read_broken
from serving.core.model.routehosts import HostRules, claimed_hosts
from serving.core.model.routepolicy import route_policy
from serving.core.scaling.learnt.target import with_saved_target
from serving.core.scaling.podsize import awake_resources
from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.scaler.replay import again, otherwise, read_record
from serving.core.settings.annotations import known_annotations, read_rollout_check_of, read_rollout_duration
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.home.admission.admission import admit
from serving.home.apiserver.content import decode_body, duplicate_fields
from serving.home.apiserver.portforward import SpdyCodec, SpdyError
from serving.home.apiserver.requests import Fault, RequestTarget, target_of
from serving.home.apiserver.writing import Sent, create, patch
from serving.home.backup import FORMAT, BackupManifest, BadBackup, restore_backup, write_backup
from serving.home.images.archive import open_archive
from serving.home.images.layers import LayerLimits, Unpacker
from serving.home.state import StateFolder
from serving.home.store.journal import Journal, JournalEntry
from serving.home.store.memory import MemoryCluster
from serving.home.store.repair import read_damaged
from serving.net.cluster.kinds import CONFIG_MAP, POD, SERVING_SERVICE
from serving.net.proxy.forwarding.phase import ExchangeOutcome
from serving.net.proxy.http1.lines import BadHeaderLine
from serving.net.proxy.http1.requesthead import RequestRefusal, read_request_head
from serving.net.proxy.server.clienthello import BadClientHello, read_server_name
from serving.net.wire.frames import (
    ActivatorStats,
    AnnouncedPod,
    PodStat,
    RelayedStat,
    RelayedStats,
    RevisionStat,
    decode_activator_stats,
    decode_announced_pod,
    decode_pod_stat,
    decode_relayed_stats,
    encode_frame,
)
from serving.queueproxy.gauges import read_gauges, read_page
from serving.tools.cli.services.convert import convert
from serving.tools.cli.services.manifests import read_manifests
from serving.tools.dashboard.archive import ARCHIVE_ERRORS, Archive, ArchiveNewerError, history_steps
from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.marks import Mark
from tests.fuzz import podspecs, structured
from tests.fuzz.http2 import draw_session, run_session
from tests.integration.image_stage import folder_of, oci_archive, tar_of
from tests.property.test_clienthello import real
from tests.property.test_http_splits import DATE
from tests.unit.core.scaling.scaler.test_replay import a_day
from tests.unit.home.apiserver.test_protobuf import CASES
from tests.unit.net.proxy.wires import Bench, messages

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
_ANNOTATIONS = [value for name, value in vars(knative).items() if name.endswith("_ANNOTATION")] + sorted(
    known_annotations()
)
_RULES = HostRules(
    domain="localhost",
    cluster_domain="cluster.local",
    domain_template="{{.Name}}.{{.Namespace}}.{{.Domain}}",
    tag_template="{{.Tag}}-{{.Name}}",
)
_TAGGED = {"traffic": [{"tag": "new", "latestRevision": True}], "containers": [{"name": "c"}]}
_TEXTS = (
    b'{"r2":{"check":"errors<1%","why":"3 of 9"}}',
    b'{"configurations":[{"configuration":"s","tag":"t","percent":100,"revisions":[{"name":"a","percent":100}]}]}',
    b'{"new":"2026-01-01T00:00:00Z"}',
    b'{"c":{"requests":{"cpu":"100m"}}}',
    b'{"layer":"ContainerHealthy","reason":"r","message":"m"}',
    b"errors<1%,p99<500ms",
    b"concurrency=5,rps=10",
    b"issuer=https://i,audience=a,claims=sub+x",
    b'{"total":5.0}',
    b"5432,8883/tls",
    b"1h5m",
    b"50",
)
_SCALARS = (
    b"a: [!!int 1_0, !!float .5, !!bool on, !!timestamp 2001-12-14, !!binary YQ==, 0o14, 12:30:45, 0b1, 2001-12-14]\n"
)
_SESSION = draw_session(1, frames=12)
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nok"
_EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n2;x\r\nok\r\n0\r\nA: b\r\n\r\n"
_METRICS = b'# TYPE a gauge\na{x="1",y="\\"}"} 3.0\na 4 1712345678000\nvllm:b\t1.5e-1\n'
_COMPOSE = b"""services:
  web:
    image: ${IMAGE:-nginx}
    ports: ["8080:80"]
    environment: {A: b, C: 1}
    deploy: {replicas: 2, resources: {limits: {cpus: "0.5", memory: 64M}}}
    healthcheck: {test: [CMD, curl, localhost], interval: 5s}
    volumes: ["data:/data"]
volumes: {data: {}}
"""


class Target(msgspec.Struct, frozen=True):
    """A function of bytes, and valid inputs of it."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def inputs_of(name: str) -> list[bytes]:
    """The seeds of a target and its corpus."""
    paths = sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []
    return [*TARGETS[name].seeds, *(bytes.fromhex(path.read_text()) for path in paths)]


def _request_head(data: bytes) -> None:
    try:
        read_request_head(data, header_count_max=100)
    except (RequestRefusal, BadHeaderLine):
        return


def _connection(data: bytes) -> None:
    """A client's connection: complete requests are handled equally for any chunks."""
    whole, pieces = Bench(), Bench()
    whole.send([data])
    pieces.send([data[at : at + 7] for at in range(0, len(data), 7)])
    assert whole.seen() == pieces.seen()


def _response(data: bytes) -> None:
    """An app's response: its request ends once, and the client receives the same for any chunks."""
    # Without any byte the request is retried on another connection.
    data = data or b"H"
    results = []
    for size in (len(data), 7):
        bench = Bench()
        bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        for at in range(0, len(data), size):
            if not bench.apps[0].is_closed:
                bench.upstreams[0].data_received(data[at : at + size])
        bench.upstreams[0].connection_lost(None)
        (exchange,) = bench.finished
        results.append(
            (exchange.outcome, [(DATE.sub(b"", head), body) for head, body in messages(bench.client.written)])
        )
    # A part of a truncated response may have been forwarded.
    if results[0][0] is ExchangeOutcome.ANSWERED:
        assert results[0] == results[1]


def _http2(data: bytes, *, is_client: bool) -> None:
    """A connection of a client or an app: each request ends, for any chunks."""
    client, app = (data, b"") if is_client else (_SESSION[0], data)

    async def both() -> None:
        assert await run_session(client, app, size=len(data) or 1) == await run_session(client, app, size=7)

    asyncio.run(both())


def _gauges(data: bytes) -> None:
    """A page of metrics, and the header, that an app gives to its queue-proxy."""
    for gauges in (read_gauges(data), read_page(data, ["a", "vllm:b"])):
        assert all(math.isfinite(value) for value in gauges.values())


def _stats(data: bytes) -> None:
    """A frame: an accepted value is bounded and round-trips."""
    for decode in (decode_pod_stat, decode_activator_stats, decode_relayed_stats, decode_announced_pod):
        try:
            result = decode(data)
        except (InvalidValue, NewerFormat):
            continue
        assert decode(msgspec.msgpack.encode(result)) == result


def _slots(data: bytes) -> None:
    results: list[list[object]] = []
    for size in (len(data) or 1, 3):
        frames, seen = Frames(), list[object]()
        try:
            for at in range(0, len(data), size):
                seen.extend(frames.feed(data[at : at + size]))
        except (InvalidValue, NewerFormat):
            pass
        results.append(seen)
    # Compared as texts, because two NaN are not equal.
    assert repr(results[0]) == repr(results[1])


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


@functools.cache
def _patched_store() -> tuple[asyncio.Runner, MemoryCluster, list[RequestTarget]]:
    """A store with a ConfigMap, a pod and a service, and their paths."""
    runner, cluster, targets = asyncio.Runner(), MemoryCluster(admit=_ADMIT), []
    for kind, body in ((CONFIG_MAP, _MAP), (POD, _POD), (SERVING_SERVICE, _SERVICE)):
        resource: Object = {**body, "metadata": {**body["metadata"], "namespace": "default"}}  # type: ignore[dict-item]
        runner.run(cluster.create(kind, resource))
        group = f"apis/{kind.group}/{kind.version}" if kind.group else "api/v1"
        targets.append(target_of(f"/{group}/namespaces/default/{kind.plural}/{resource['metadata']['name']}"))
    return runner, cluster, targets


def _patched(content_type: str, data: bytes) -> None:
    """A dry run of a patch of a ConfigMap, a pod and a service: a store for each input takes ten times as long."""
    runner, cluster, targets = _patched_store()
    query = MultiDict({"dryRun": "All", **({"fieldManager": "fuzz"} if "apply" in content_type else {})})
    for target in targets:
        with contextlib.suppress(Fault, ClusterError):
            runner.run(patch(cluster, target, Sent(query, content_type, data)))


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
    """The file of the store."""

    def damaged(path: Path) -> Journal:
        path.write_bytes(data)
        with contextlib.suppress(JournalDamaged, sqlite3.OperationalError):
            read_damaged(path, now_s=0.0)
        return Journal(path)

    asyncio.run(_replay(damaged))


def _journal_row(data: bytes) -> None:
    """An object in a journal that is whole otherwise."""

    def with_row(path: Path) -> Journal:
        journal = Journal(path)
        journal.write_now([JournalEntry(kind="configmaps", namespace="default", name="m", data=data)])
        return journal

    asyncio.run(_replay(with_row))


async def _replay(write: Callable[[Path], Journal]) -> None:
    """Load a store from a journal: it works, or the error is one of those for damage."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        try:
            journal = write(Path(name) / "journal.db")
        except (JournalDamaged, NewerFormat, ClusterError):
            return
        try:
            cluster = MemoryCluster(journal)
        except (JournalDamaged, NewerFormat, ClusterError):
            await journal.close()
            return
        await cluster.close()


def _decision(data: bytes) -> None:
    """A line of the decision log, replayed with the same and with other settings."""
    try:
        record = read_record(data)
        again(record)
        list(otherwise([record, record], {"max_scale": "3"}))
    except (InvalidValue, NewerFormat):
        return


def _history(data: bytes) -> None:
    """The dashboard's file: it is read, or reported as damaged or newer."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path = Path(name) / "history.db"
        path.write_bytes(data)
        try:
            archive = Archive(path, history_steps(1.0), bytes_max=2**20)
        except (*ARCHIVE_ERRORS, OSError, ArchiveNewerError):
            return
        with contextlib.suppress(*ARCHIVE_ERRORS):
            archive.roll(200.0)
            msgspec.json.encode(archive.read("n/r", from_s=0.0, to_s=200.0, now_s=200.0))
        archive.close()


def _backup(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path, state = Path(name) / "b.tar.gz", StateFolder(Path(name) / "state")
        path.write_bytes(data)
        try:
            restore_backup(path, state)
        except BadBackup:
            assert not state.journal.exists()
        assert set(_names(name)) <= {"b.tar.gz", "state"}


@contextlib.contextmanager
def _yaml_file(data: bytes) -> Iterator[str]:
    with tempfile.NamedTemporaryFile(suffix=".yaml", dir=_FOLDER) as file:
        file.write(data)
        file.flush()
        yield file.name


def _manifest_file(data: bytes) -> None:
    """A file for ``serving apply``."""
    with _yaml_file(data) as name, contextlib.suppress(SettingsError):
        read_manifests([name])


def _compose_file(data: bytes) -> None:
    """A file for ``serving convert``."""
    with _yaml_file(data) as name:
        result = CliRunner().invoke(convert, [name])
        if result.exception is not None and not isinstance(result.exception, SystemExit | ServingError):
            raise result.exception


def _seed_journal() -> bytes:
    async def write(path: Path) -> None:
        cluster = MemoryCluster(Journal(path))
        for kind, body in ((CONFIG_MAP, _MAP), (SERVING_SERVICE, _SERVICE)):
            await cluster.create(kind, {**body, "metadata": {**body["metadata"], "namespace": "default"}})  # type: ignore[dict-item]
        await cluster.close()

    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path = Path(name) / "journal.db"
        asyncio.run(write(path))
        # A backup copy also contains SQLite's log.
        copy = sqlite3.connect(Path(name) / "copy.db")
        source = sqlite3.connect(path)
        source.backup(copy)
        source.close()
        copy.close()
        return (Path(name) / "copy.db").read_bytes()


def _seed_stats() -> tuple[bytes, ...]:
    pod = PodStat(at_s=1.0, concurrency=1.5, request_count=3, gauges={"waiting": 2.0}, pod="p")
    revision = RevisionStat(namespace="n", revision="r", concurrency=1.0, request_count=1)
    announced = AnnouncedPod(namespace="n", revision="r", pod="p", address="1.2.3.4:5")
    relayed = RelayedStat(namespace="n", revision="r", concurrency=1.0, pod="p", is_activator=True)
    return (
        encode_frame(pod),
        encode_frame(ActivatorStats(stats=[revision])),
        encode_frame(RelayedStats(stats=[relayed], announced=[announced])),
        encode_frame(announced),
    )


def _seed_archive() -> bytes:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path = Path(name) / "a.tar"
        oci_archive(path, [tar_of([("f", b"x", 0o644)])])
        return path.read_bytes()


def _seed_layers() -> Iterator[bytes]:
    plain = tar_of([folder_of("d"), ("d/f", b"text", 0o644), ("d/.wh.g", b"", 0o644), (".wh..wh..opq", b"", 0o644)])
    yield plain
    yield gzip.compress(plain)


def _seed_rows() -> Iterator[bytes]:
    yield _JSON(
        {**_MAP, "metadata": {"name": "m", "namespace": "default", "uid": "u", "resourceVersion": "5"}}
    ).encode()
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "v", "controller": True}
    yield _JSON({"metadata": {"name": "m", "namespace": "default", "uid": "u", "ownerReferences": [owner]}}).encode()


def _seed_history() -> bytes:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path = Path(name) / "history.db"
        archive = Archive(path, history_steps(1.0), bytes_max=2**20)
        mark = Mark(key="n/r", at_s=10.0, kind="deploy", text="x")
        for at_s in range(0, 180, 5):
            archive.put(at_s, {"n/r": [1.0] * len(COLUMNS)}, [mark])
        archive.close()
        return path.read_bytes()


def _seed_backup() -> bytes:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_FOLDER) as name:
        path, state = Path(name) / "b.tar.gz", StateFolder(Path(name))
        state.key.write_bytes(b"key")
        manifest = BackupManifest(format=FORMAT, version="0", created_s=0.0)
        write_backup(path, state, journal=_seed_journal(), manifest=manifest)
        return path.read_bytes()


def _annotations(data: bytes) -> None:
    """The text of each annotation of an object that a user writes, as all daemons read it."""
    text = data.decode(errors="replace")
    annotations = dict.fromkeys(_ANNOTATIONS, text)
    result: Object = {"metadata": {"name": "r", "namespace": "n", "annotations": annotations}, "spec": _TAGGED}
    route_policy(annotations)
    tag_splits(annotations)
    read_broken(text)
    awake_resources(result)
    failure_to_keep(result)
    read_rollout_duration(annotations)
    read_rollout_check_of(annotations)
    list(claimed_hosts(result, _RULES))
    spec = resolve_annotations(annotations, AutoscalerSettings(), container_concurrency=0, reachable=True)
    with_saved_target(spec, text, total_max=100.0)


def _client_hello(data: bytes) -> None:
    with contextlib.suppress(BadClientHello):
        read_server_name(data)


TARGETS: dict[str, Target] = {
    "client-hello": Target(_client_hello, (real("db.example.com"), real(None))),
    "http1-head": Target(_request_head, (_HEAD, _CHUNKED)),
    "http1-connection": Target(_connection, (_HEAD * 2, _CHUNKED + _HEAD)),
    "annotations": Target(_annotations, _TEXTS),
    "http1-response": Target(_response, (_RESPONSE, _EARLY + _CHUNKS, b"HTTP/1.0 200 OK\r\n\r\nuntil the end")),
    "http2-client": Target(functools.partial(_http2, is_client=True), (_SESSION[0], draw_session(2, frames=40)[0])),
    "http2-app": Target(functools.partial(_http2, is_client=False), (_SESSION[1], draw_session(2, frames=40)[1])),
    "app-gauges": Target(_gauges, (_METRICS, b"TEXT a=1, b.c=2", b'JSON {"a": 1, "named_metrics": {"b": 2}}')),
    "stat-frames": Target(_stats, _seed_stats()),
    "slot-messages": Target(
        _slots, (encode(PeerHello(index=1)) + encode(Ask(key=("ns", "r"), waiting_count=2, waited_s=0.5)),)
    ),
    "port-forward": Target(_spdy, (SpdyCodec.data(1, b"x"), SpdyCodec.reset(1), SpdyCodec.pong(2))),
    "body-json": Target(functools.partial(_body, "application/json"), (_JSON(_SERVICE).encode(), _MERGE)),
    "body-yaml": Target(functools.partial(_body, "application/yaml"), (_YAML, _SCALARS)),
    "body-protobuf": Target(
        functools.partial(_body, "application/vnd.kubernetes.protobuf"),
        (b"k8s\0\n\r\n\2v1\x12\7PodList", *(base64.b64decode(json.loads(line)["protobuf"]) for line in CASES)),
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
    "patch-apply": Target(
        functools.partial(_patched, "application/apply-patch+yaml"),
        tuple(
            map(
                msgspec.json.encode,
                (
                    {"apiVersion": "v1", "kind": "ConfigMap", **_MAP},
                    {"apiVersion": "v1", "kind": "Pod", **_POD},
                    _SERVICE,
                ),
            )
        ),
    ),
    "pod-spec": Target(podspecs.expand, podspecs.SEEDS),
    "image-layer": Target(_layer, tuple(_seed_layers())),
    "image-archive": Target(_archive, (_seed_archive(),)),
    "journal": Target(_journal, (_seed_journal(),)),
    "journal-row": Target(_journal_row, tuple(_seed_rows())),
    "decision-log": Target(_decision, tuple(map(msgspec.json.encode, a_day()[:20]))),
    "history": Target(_history, (_seed_history(),)),
    "backup": Target(_backup, (_seed_backup(), gzip.decompress(_seed_backup()))),
    "manifest-file": Target(_manifest_file, (_YAML, _SCALARS, _JSON(_SERVICE).encode(), _YAML + b"---\n" + _YAML)),
    "compose-file": Target(_compose_file, (_COMPOSE, _SCALARS + _COMPOSE)),
    **{name: Target(run, structured.SEEDS[name]) for name, run in structured.RUNS.items()},
}
