"""The API server over plain HTTP and a real socket, with a memory store."""

import asyncio
import contextlib
import io
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from serving.core.model.objects import Object
from serving.home.admission.admission import admit
from serving.home.apiserver import watching
from serving.home.apiserver.logoptions import LogOptions, StoredLog
from serving.home.store.history import StoreLimits
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP
from serving.net.cluster.port import Selection, WatchEvent, Write
from tests.integration.api_server import TOKEN, served

Json = dict[str, Any]
SERVICES = "/apis/serving.knative.dev/v1/namespaces/default/services"
MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
CAN_I = {"spec": {"resourceAttributes": {"verb": "*", "resource": "*", "group": "*"}}}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Lines:
    """Pod logs of one line; followers receive a second line after ``more`` is set."""

    def __init__(self) -> None:
        self.more = asyncio.Event()

    def stored(self, namespace: str) -> list[StoredLog]:
        """The log of one deleted pod."""
        return [StoredLog(pod="gone", containers=["app"], written_s=1.0)] if namespace == "default" else []

    async def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        yield f"{namespace}/{pod}/{options.container}\n".encode()
        if options.follow:
            await self.more.wait()
            yield b"more\n"


class Client:
    """A session with the admin token that decodes responses as JSON."""

    def __init__(self, session: aiohttp.ClientSession, lines: Lines) -> None:
        self.session = session
        self.lines = lines

    async def call(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Json]:
        status, reply, _ = await self.whole(method, path, body, headers=headers)
        return status, reply

    async def whole(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Json, list[str]]:
        data = None if body is None else msgspec.json.encode(body)
        heads = {"Content-Type": "application/json"} | (headers or {})
        async with self.session.request(method, path, data=data, headers=heads) as response:
            reply = msgspec.json.decode(await response.read())
            return response.status, reply, response.headers.getall("Warning", [])

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **headers: str) -> AsyncIterator[AsyncIterator[Json]]:
        async with self.session.get(path, headers=headers) as response:
            assert response.status == 200, await response.text()
            yield (msgspec.json.decode(line) async for line in response.content)


@contextlib.asynccontextmanager
async def connected(
    cluster: MemoryCluster, folder: Path, *, with_logs: bool = True, bookmark_period_s: float = math.inf
) -> AsyncIterator[Client]:
    """A client of an API server over a store."""
    lines = Lines()
    async with (
        served(cluster, folder, logs=lines if with_logs else None, bookmark_period_s=bookmark_period_s) as api,
        aiohttp.ClientSession(api.url, headers={"Authorization": f"Bearer {TOKEN}"}) as session,
    ):
        yield Client(session, lines)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with connected(MemoryCluster(admit=admit), tmp_path) as new_client:
        yield new_client


def service(name: str = "hello", **pod: object) -> Json:
    pods = {"containers": [{"image": "x"}]} | pod
    return {"metadata": {"name": name}, "spec": {"template": {"spec": pods}}}


def config_map(name: str = "m", **data: str) -> Json:
    return {"metadata": {"name": name, "labels": {"team": "a"}}, "data": data}


async def test_wrong_token_is_unauthorized(client: Client) -> None:
    status, reply = await client.call("GET", PODS, headers={"Authorization": "Bearer wrong"})
    assert (status, reply["reason"]) == (401, "Unauthorized")


async def test_token_in_the_path_is_unauthorized(client: Client) -> None:
    status, _ = await client.call("GET", f"/token/{TOKEN}{PODS}", headers={"Authorization": ""})
    assert status == 401


async def test_foreign_host_header_is_forbidden(client: Client) -> None:
    status, reply = await client.call("GET", PODS, headers={"Host": "evil.example"})
    assert (status, reply["reason"]) == (403, "Forbidden")


@pytest.mark.parametrize("path", [SERVICES, "/nowhere", f"{MAPS}?watch=true&timeoutSeconds=1"])
async def test_responses_are_not_cacheable(client: Client, path: str) -> None:
    async with client.session.get(path) as response:
        assert response.headers["Cache-Control"] == "no-cache, private"


async def test_health_needs_no_token(client: Client) -> None:
    async with client.session.get("/readyz", headers={"Authorization": ""}) as response:
        assert (response.status, await response.text()) == (200, "ok")


async def test_created_service_has_defaults(client: Client) -> None:
    status, body = await client.call("POST", SERVICES, service())
    assert status == 201
    assert body["spec"]["template"]["spec"]["timeoutSeconds"] == 300
    assert (body["apiVersion"], body["kind"]) == ("serving.knative.dev/v1", "Service")
    assert {"uid", "resourceVersion", "creationTimestamp", "generation", "namespace"} <= set(body["metadata"])


async def test_invalid_service_is_rejected_with_every_cause(client: Client) -> None:
    status, reply = await client.call("POST", SERVICES, service(containers=[], containerConcurrency=-1))
    assert (status, reply["reason"], reply["details"]["name"]) == (422, "Invalid", "hello")
    fields = [cause["field"] for cause in reply["details"]["causes"]]
    assert fields == ["spec.template.spec.containers", "spec.template.spec.containerConcurrency"]
    assert "missing field(s): spec.template.spec.containers" in reply["message"]


async def test_unknown_field_is_dropped_with_a_warning(client: Client) -> None:
    status, body, warnings = await client.whole("POST", SERVICES, service(foo=1))
    assert (status, warnings) == (201, ['299 - "unknown field \\"spec.template.spec.foo\\""'])
    assert "foo" not in body["spec"]["template"]["spec"]


async def test_unknown_field_is_rejected_under_strict_validation(client: Client) -> None:
    status, reply = await client.call("POST", f"{SERVICES}?fieldValidation=Strict", service(foo=1))
    assert (status, reply["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.template.spec.foo"' in reply["message"]


async def test_patch_is_validated_strictly_if_requested(client: Client) -> None:
    await client.call("POST", SERVICES, service())
    patch: Json = {"spec": {"tempalte": {}}}
    status, _ = await client.call("PATCH", f"{SERVICES}/hello?fieldValidation=Strict", patch, headers=MERGE)
    assert status == 400


async def test_field_without_effect_causes_a_warning(client: Client) -> None:
    _, _, warnings = await client.whole("POST", SERVICES, service(priorityClassName="high"))
    assert warnings == [
        '299 - "spec.template.spec.priorityClassName: accepted without effect: pods run on this machine"'
    ]


async def test_dry_run_delete_retains_the_object(client: Client) -> None:
    await client.call("POST", MAPS, config_map())
    await client.call("DELETE", f"{MAPS}/m", {"dryRun": ["All"]})
    assert (await client.call("GET", f"{MAPS}/m"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "expected"),
    [
        ("POST", MAPS, [], {}, 400),
        ("POST", MAPS, {"metadata": 5}, {}, 400),
        ("POST", MAPS, {"kind": "Secret", "metadata": {"name": "m"}}, {}, 400),
        ("POST", MAPS, {"metadata": {"name": "m", "namespace": "other"}}, {}, 400),
        ("POST", f"{MAPS}/m", {}, {}, 405),
        ("POST", "/api/v1/configmaps", {}, {}, 405),
        ("POST", f"{MAPS}?dryRun=Some", {"metadata": {"name": "m"}}, {}, 400),
        ("POST", MAPS, {}, {"Content-Type": "text/plain"}, 415),
        ("PUT", MAPS, {}, {}, 405),
        ("PUT", f"{MAPS}/m", {"metadata": {"name": "n"}}, {}, 400),
        ("PUT", f"{MAPS}/m", {"metadata": {"name": "m"}}, {}, 404),
        ("PATCH", f"{MAPS}/m", {}, {"Content-Type": "application/json"}, 415),
        ("PATCH", f"{MAPS}/m", [], MERGE, 400),
        ("PATCH", f"{MAPS}/m", {}, {"Content-Type": "application/apply-patch+yaml"}, 422),
        ("DELETE", f"{MAPS}/m", None, {}, 404),
        ("DELETE", f"{MAPS}/m/status", None, {}, 404),
        ("DELETE", f"{MAPS}/m", [], {}, 400),
        ("DELETE", f"{MAPS}/m", {"propagationPolicy": "Sideways"}, {}, 400),
        ("DELETE", f"{MAPS}/m", {"dryRun": ["Some"]}, {}, 400),
        ("DELETE", f"{MAPS}/m", {"gracePeriodSeconds": -1}, {}, 400),
        ("DELETE", "/api/v1/configmaps", None, {}, 405),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/roles", None, {}, 404),
        ("GET", f"{MAPS}/m/scale", None, {}, 404),
        ("GET", f"{PODS}/p/exec", None, {}, 404),
        ("POST", f"{PODS}/p/eviction", {}, {}, 400),
        ("OPTIONS", MAPS, None, {}, 405),
        ("GET", f"{MAPS}?limit=x", None, {}, 400),
        ("GET", f"{MAPS}?limit={'9' * 5000}", None, {}, 400),
        ("GET", MAPS, None, {"Accept": "text/html"}, 406),
        ("GET", "/apis/rbac.authorization.k8s.io", None, {}, 404),
        ("GET", "/openapi/v3/apis/rbac.authorization.k8s.io/v1", None, {}, 404),
        ("GET", f"{MAPS}?watch=1&timeoutSeconds=x", None, {}, 400),
        ("GET", f"{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", None, {}, 400),
    ],
)
async def test_invalid_request_returns_status_with_message(
    client: Client, method: str, path: str, body: object, headers: dict[str, str], expected: int
) -> None:
    status, reply = await client.call(method, path, body, headers=headers)
    assert (status, reply["kind"], reply["code"]) == (expected, "Status", expected)
    assert reply["message"]


async def test_watch_with_head_is_rejected(client: Client) -> None:
    async with client.session.head(f"{MAPS}?watch=1&timeoutSeconds=1") as response:
        assert response.status == 405


async def test_deeply_nested_body_is_rejected(client: Client) -> None:
    data = b'{"metadata": {"name": "m"}, "data": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001
    async with client.session.post(MAPS, data=data, headers={"Content-Type": "application/json"}) as response:
        assert response.status == 400


async def test_patch_with_too_many_operations_is_rejected_before_it_is_parsed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.call("POST", MAPS, config_map(a="b"))
    parsed: list[object] = []
    monkeypatch.setattr("serving.home.apiserver.writing.touched", lambda body, _: parsed.append(body))
    operation = {"op": "add", "path": "/data/a", "value": "c"}
    headers = {"Content-Type": "application/json-patch+json"}
    status, reply = await client.call("PATCH", f"{MAPS}/m", [operation] * 10_001, headers=headers)
    assert (status, parsed) == (422, [])
    assert reply["message"] == "a JSON patch has at most 10000 operations, this has 10001"


async def test_oversize_body_is_rejected(client: Client) -> None:
    async with client.session.post(MAPS, data=io.BytesIO(bytes(4 * 2**20))) as response:
        assert (response.status, (await response.json())["reason"]) == (413, "RequestEntityTooLarge")


async def test_yaml_manifest_is_accepted(client: Client) -> None:
    headers = {"Content-Type": "application/yaml"}
    async with client.session.post(MAPS, data=b"metadata: {name: y}\ndata: {a: b}", headers=headers) as response:
        assert response.status == 201


async def test_table_has_columns_of_the_crd(client: Client) -> None:
    await client.call("POST", SERVICES, service())
    _, table = await client.call("GET", SERVICES, headers=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]][:2] == ["Name", "URL"]
    assert table["rows"][0]["cells"][0] == "hello"
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


async def test_single_object_is_served_as_table(client: Client) -> None:
    await client.call("POST", MAPS, config_map(a="b"))
    _, table = await client.call("GET", f"{MAPS}/m", headers=TABLE)
    assert table["rows"][0]["cells"][:2] == ["m", 1]


async def test_partial_object_metadata_contains_no_data(client: Client) -> None:
    await client.call("POST", MAPS, config_map(a="b"))
    accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    _, resource = await client.call("GET", f"{MAPS}/m", headers=accept)
    assert (resource["kind"], "data" in resource) == ("PartialObjectMetadata", False)
    many = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    _, listing = await client.call("GET", MAPS, headers=many)
    assert listing["kind"] == "PartialObjectMetadataList"


async def test_delete_responds_with_status_and_uid(client: Client) -> None:
    _, resource = await client.call("POST", MAPS, config_map())
    status, reply = await client.call("DELETE", f"{MAPS}/m")
    assert (status, reply["status"], reply["details"]["uid"]) == (200, "Success", resource["metadata"]["uid"])


async def test_delete_of_object_with_finalizers_responds_with_object(client: Client) -> None:
    body = config_map()
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await client.call("POST", MAPS, body)
    _, reply = await client.call("DELETE", f"{MAPS}/m")
    assert reply["metadata"]["deletionTimestamp"]


def protobuf_options(version: str, *, uid: str) -> bytes:
    """DeleteOptions as a typed Go client sends them: grace period 0 and a precondition."""
    meta = b"\x0a" + bytes([len(version)]) + version.encode() + b"\x12\x0dDeleteOptions"
    precondition = b"\x0a" + bytes([len(uid)]) + uid.encode()
    options = b"\x08\x00" + b"\x12" + bytes([len(precondition)]) + precondition
    return b"k8s\x00" + b"\x0a" + bytes([len(meta)]) + meta + b"\x12" + bytes([len(options)]) + options


async def test_delete_accepts_protobuf_options(client: Client) -> None:
    _, resource = await client.call("POST", MAPS, config_map())
    heads = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    wrong = protobuf_options("v1", uid="another")
    async with client.session.delete(f"{MAPS}/m", data=wrong, headers=heads) as response:
        assert response.status == 409, await response.text()
    right = protobuf_options("v1", uid=resource["metadata"]["uid"])
    async with client.session.delete(f"{MAPS}/m", data=right, headers=heads) as response:
        assert response.status == 200, await response.text()
    assert (await client.call("GET", f"{MAPS}/m"))[0] == 404


async def test_delete_with_wrong_uid_precondition_conflicts(client: Client) -> None:
    await client.call("POST", MAPS, config_map())
    for options in ({}, {"dryRun": ["All"]}):
        status, _ = await client.call("DELETE", f"{MAPS}/m", {"preconditions": {"uid": "other"}} | options)
        assert status == 409


async def test_delete_collection_follows_label_selector(client: Client) -> None:
    for name, team in (("a", "x"), ("b", "x"), ("c", "y")):
        await client.call("POST", MAPS, {"metadata": {"name": name, "labels": {"team": team}}})
    status, _ = await client.call("DELETE", f"{MAPS}?labelSelector=team%3Dx")
    _, remaining = await client.call("GET", MAPS)
    assert (status, [item["metadata"]["name"] for item in remaining["items"]]) == (200, ["c"])


async def test_initial_events_end_with_annotated_bookmark(client: Client) -> None:
    await client.call("POST", MAPS, config_map("a"))
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with client.watch(f"{MAPS}?{query}") as events:
        seen = [await anext(events), await anext(events)]
    assert [entry["type"] for entry in seen] == ["ADDED", "BOOKMARK"]
    assert seen[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_bookmarks_with_latest_version_are_sent_only_to_watches_that_allow_them(tmp_path: Path) -> None:
    async with connected(MemoryCluster(), tmp_path, bookmark_period_s=0.05) as client:
        _, listing = await client.call("GET", MAPS)
        since = f"watch=true&resourceVersion={listing['metadata']['resourceVersion']}"
        async with client.watch(f"{MAPS}?{since}&allowWatchBookmarks=true") as events:
            first = await anext(events)
            _, resource = await client.call("POST", MAPS, config_map("a"))
            later_events = [event async for event in _until_two_bookmarks_after_the_first_change(events)]
        async with client.watch(f"{MAPS}?{since}&timeoutSeconds=1") as events:
            assert [event["type"] async for event in events] == ["ADDED"], "this watch does not allow bookmarks"
    metadata = {"resourceVersion": listing["metadata"]["resourceVersion"], "creationTimestamp": None}
    bookmark = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}
    assert first == {"type": "BOOKMARK", "object": bookmark}
    later = {**bookmark, "metadata": {**metadata, "resourceVersion": resource["metadata"]["resourceVersion"]}}
    assert later_events[-1] == {"type": "BOOKMARK", "object": later}


async def _until_two_bookmarks_after_the_first_change(events: AsyncIterator[Json]) -> AsyncIterator[Json]:
    has_changed, bookmark_count = False, 0
    async for event in events:
        yield event
        has_changed = has_changed or event["type"] != "BOOKMARK"
        bookmark_count += has_changed and event["type"] == "BOOKMARK"
        if bookmark_count == 2:
            return


async def test_watch_ends_after_timeout_seconds(client: Client) -> None:
    async with client.watch(f"{MAPS}?watch=true&timeoutSeconds=1") as events:
        assert [event async for event in events if event["type"] != "BOOKMARK"] == []


async def test_watch_can_send_tables(client: Client) -> None:
    async with client.watch(f"{MAPS}?watch=true", **TABLE) as events:
        await client.call("POST", MAPS, config_map("a", x="y"))
        event = await anext(events)
    assert (event["type"], event["object"]["kind"], event["object"]["rows"][0]["cells"][:2]) == (
        "ADDED",
        "Table",
        ["a", 1],
    )


async def test_pod_log_is_served(client: Client) -> None:
    await client.call("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}})
    async with client.session.get(f"{PODS}/p/log") as response:
        assert await response.text() == "default/p/c\n"


async def test_followed_pod_log_sends_new_lines(client: Client) -> None:
    await client.call("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}})
    async with client.session.get(f"{PODS}/p/log?follow=true") as response:
        assert await response.content.readline() == b"default/p/c\n"
        client.lines.more.set()
        assert await response.content.readline() == b"more\n"


async def test_stored_log_of_deleted_pod_is_served(client: Client) -> None:
    async with client.session.get("/logs/pods/default") as response:
        assert await response.json() == [{"pod": "gone", "containers": ["app"], "written_s": 1.0}]
    async with client.session.get(f"{PODS}/gone/log") as response:
        assert await response.text() == "default/gone/app\n"
    assert (await client.call("GET", f"{PODS}/gone/log?container=other"))[0] == 400
    async with client.session.get("/logs/pods/other") as response:
        assert await response.json() == []
    assert (await client.call("GET", "/logs/pods/%2e%2e"))[0] == 404


async def test_log_of_unknown_pod_is_not_found(client: Client) -> None:
    assert (await client.call("GET", f"{PODS}/p/log"))[0] == 404


@pytest.mark.parametrize("upgrade", ["", "SPDY/3.1", "websocket"])
@pytest.mark.parametrize(
    "stream", ["exec", "exec?command=ls&stdout=1", "attach?stdout=1", "portforward?ports=x", "log?tailLines=x"]
)
async def test_stream_of_unknown_pod_is_not_found_whatever_its_parameters(
    client: Client, stream: str, upgrade: str
) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": upgrade} if upgrade else {}
    status, reply = await client.call("GET", f"{PODS}/p/{stream}", headers=headers)
    assert (status, reply["reason"], reply["message"]) == (404, "NotFound", 'pods "p" not found')


async def test_invalid_since_time_of_log_is_reported(client: Client) -> None:
    spec = {"containers": [{"name": "c", "image": "x"}]}
    await client.call("POST", PODS, {"metadata": {"name": "timed"}, "spec": spec})
    status, reply = await client.call("GET", f"{PODS}/timed/log?sinceTime=yesterday")
    assert (status, reply["message"]) == (400, "sinceTime: 'yesterday' is not a time, as 2026-11-21T10:00:00Z")


async def test_server_without_logs_returns_501(tmp_path: Path) -> None:
    async with connected(MemoryCluster(), tmp_path, with_logs=False) as client:
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        await client.call("POST", PODS, pod)
        assert (await client.call("GET", f"{PODS}/p/log"))[0] == 501


APPS_V1 = {"groupVersion": "apps/v1", "version": "v1"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}),
        ("/version", {"major": "1", "minor": "32"}),
        ("/api", {"kind": "APIVersions", "versions": ["v1"]}),
        ("/apis", {"kind": "APIGroupList"}),
        ("/apis/apps", {"kind": "APIGroup", "name": "apps", "versions": [APPS_V1], "preferredVersion": APPS_V1}),
        ("/apis/apps/v1", {"kind": "APIResourceList", "groupVersion": "apps/v1"}),
        ("/api/v1", {"kind": "APIResourceList", "groupVersion": "v1"}),
        ("/openapi/v2", {"swagger": "2.0"}),
    ],
)
async def test_discovery_documents_are_served(client: Client, path: str, expected: Object) -> None:
    status, document = await client.call("GET", path)
    assert status == 200
    assert document | expected == document


async def test_discovery_lists_groups_and_kinds(client: Client) -> None:
    _, groups = await client.call("GET", "/apis")
    assert {"apps", "batch", "serving.knative.dev"} <= {group["name"] for group in groups["groups"]}
    for path, plural, kind in (("/api/v1", "pods", "Pod"), ("/apis/apps/v1", "deployments", "Deployment")):
        _, listing = await client.call("GET", path)
        (resource,) = (resource for resource in listing["resources"] if resource["name"] == plural)
        assert (resource["kind"], resource["namespaced"]) == (kind, True)
        assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(resource["verbs"])


async def test_openapi_document_of_group_is_served(client: Client) -> None:
    _, index = await client.call("GET", "/openapi/v3")
    url = index["paths"]["apis/serving.dev/v1alpha1"]["serverRelativeURL"]
    assert (await client.call("GET", url))[1]["openapi"] == "3.0.0"


async def test_admin_token_is_allowed_everything(client: Client) -> None:
    _, review = await client.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", CAN_I)
    assert review["status"]["allowed"] is True


class Broken(MemoryCluster):
    """A store that raises an unexpected error."""

    async def write(self, _: Write) -> Json:
        raise RuntimeError("secret detail")


async def test_internal_error_is_logged_and_hidden_from_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(Broken(), tmp_path) as client:
        status, reply = await client.call("POST", MAPS, config_map())
    assert (status, reply["reason"]) == (500, "InternalError")
    assert "secret detail" not in reply["message"]
    assert "secret detail" in caplog.text


async def test_slow_watch_receives_410_error_event(tmp_path: Path) -> None:
    cluster = MemoryCluster(limits=StoreLimits(watch_count_max=1))
    async with connected(cluster, tmp_path) as client, client.watch(f"{MAPS}?watch=true") as events:
        for name in ("a", "b", "c"):
            await cluster.create(CONFIG_MAP, {"metadata": {"name": name, "namespace": "default"}})
        seen = [event async for event in events]
    assert (seen[-1]["type"], seen[-1]["object"]["code"]) == ("ERROR", 410)


async def test_watch_ends_when_store_closes(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    async with connected(cluster, tmp_path) as client, client.watch(f"{MAPS}?watch=true") as events:
        await cluster.close()
        assert [event async for event in events] == []


class Observed(MemoryCluster):
    """A store that sets `ended` when a watch ends."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    def watch_selection(self, selection: Selection, resource_version: str) -> Any:  # noqa: ANN401 - as the store
        watch = super().watch_selection(selection, resource_version)

        @contextlib.asynccontextmanager
        async def observed() -> AsyncIterator[AsyncIterator[WatchEvent]]:
            try:
                async with watch as events:
                    yield events
            finally:
                self.ended.set()

        return observed()


async def test_watch_of_disconnected_client_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_CHECK_EVERY_S", 0.01)
    cluster = Observed()
    async with connected(cluster, tmp_path) as client:
        async with client.watch(f"{MAPS}?watch=true"):
            assert not cluster.ended.is_set()
        await asyncio.wait_for(cluster.ended.wait(), 60)


async def test_client_that_does_not_read_its_watch_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_UNREAD_S", 0.1)
    cluster = Observed()
    for name in "abcdefgh":
        body = {"metadata": {"name": name, "namespace": "default"}, "data": {"x": "y" * 1_400_000}}
        await cluster.create(CONFIG_MAP, body)
    url = f"{MAPS}?watch=true&timeoutSeconds=1"
    async with connected(cluster, tmp_path) as client, client.session.get(url) as response:
        await asyncio.wait_for(cluster.ended.wait(), 60)
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_dry_run_delete_collection_retains_objects(client: Client) -> None:
    await client.call("POST", MAPS, config_map())
    await client.call("DELETE", f"{MAPS}?dryRun=All")
    assert (await client.call("GET", f"{MAPS}/m"))[0] == 200


async def test_error_for_generated_name_contains_no_name(client: Client) -> None:
    status, reply = await client.call("POST", MAPS, {"metadata": {"generateName": "A-"}})
    assert (status, "name" in reply.get("details", {})) == (422, False)
