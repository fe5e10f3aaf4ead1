import inspect
from typing import Any

import msgspec
import pytest

from serving.core.model.objects import Object
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, NAMESPACE, POD
from serving.net.cluster.port import (
    Cluster,
    Create,
    Delete,
    Encoded,
    EventType,
    Evict,
    Patch,
    PatchType,
    Replace,
    Selection,
    WatchEvent,
    Write,
)

BODY: Object = {"metadata": {"name": "one", "namespace": "here"}}
PATCH = {"data": {"a": "b"}}
WRITES: dict[str, tuple[type[Write], dict[str, Any]]] = {
    "create": (Create, {"kind": CONFIG_MAP, "body": BODY, "dry_run": True}),
    "replace": (Replace, {"kind": POD, "body": BODY, "subresource": "status", "dry_run": True}),
    "patch": (
        Patch,
        {
            "kind": POD,
            "namespace": "here",
            "name": "one",
            "patch": PATCH,
            "patch_type": PatchType.STRATEGIC,
            "subresource": "status",
            "dry_run": True,
        },
    ),
    "delete": (
        Delete,
        {
            "kind": POD,
            "namespace": "here",
            "name": "one",
            "uid": "u",
            "resource_version": "7",
            "propagation": "Orphan",
            "grace_s": 3,
        },
    ),
    "evict": (Evict, {"namespace": "here", "name": "one", "uid": "u"}),
}


class RecordingCluster(MemoryCluster):
    """A store that only records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    async def write(self, write: Write) -> Object:
        self.calls.append(write)
        return BODY

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Any:  # noqa: ANN401
        self.calls.append((selection, page_size, page))

    def watch_selection(self, selection: Selection, resource_version: str) -> Any:  # noqa: ANN401 - what is noted
        self.calls.append((selection, resource_version))


@pytest.mark.parametrize("name", WRITES)
async def test_write_method_passes_all_options_in_one_value(name: str) -> None:
    cluster, (kind_of_write, options) = RecordingCluster(), WRITES[name]
    await getattr(cluster, name)(**options)
    assert cluster.calls == [kind_of_write(**options)]


@pytest.mark.parametrize("name", WRITES)
def test_write_method_parameters_equal_fields_of_its_value(name: str) -> None:
    parameters = {
        parameter.name: parameter.default
        for parameter in inspect.signature(getattr(Cluster, name)).parameters.values()
        if parameter.name != "self"
    }
    fields = msgspec.structs.fields(WRITES[name][0])
    assert parameters == {
        field_info.name: inspect.Parameter.empty if field_info.default is msgspec.NODEFAULT else field_info.default
        for field_info in fields
    }
    assert set(WRITES[name][1]) == set(parameters), "the test above uses every option"


async def test_list_and_watch_pass_one_selection() -> None:
    cluster, options = RecordingCluster(), {"label_selector": "a=b", "field_selector": "metadata.name=one"}
    await cluster.list(POD, "here", page_size=3, page="next", **options)
    cluster.watch(POD, "here", resource_version="7", **options)
    selection = Selection(kind=POD, namespace="here", label_selector="a=b", field_selector="metadata.name=one")
    assert cluster.calls == [(selection, 3, "next"), (selection, "7")]


def test_every_write_has_kind_namespace_and_name() -> None:
    writes = [kind_of_write(**options) for kind_of_write, options in WRITES.values()]
    assert [(write.kind.name, write.namespace, write.name) for write in writes] == [
        ("ConfigMap", "here", "one"),
        *[("Pod", "here", "one")] * 4,
    ]


def test_body_without_namespace_or_name_uses_default_namespace_and_empty_name() -> None:
    assert (Create(kind=POD, body={}).namespace, Create(kind=POD, body={}).name) == ("default", "")
    assert Create(kind=NAMESPACE, body=BODY).namespace == ""


def object_at(version: str) -> dict[str, dict[str, str]]:
    return {"metadata": {"name": "one", "resourceVersion": version}}


def test_watch_event_decodes_its_object_once() -> None:
    event = WatchEvent(type=EventType.ADDED, payload=Encoded(msgspec.json.encode(object_at("5"))))
    assert event.object == object_at("5")
    assert event.object is event.object


def test_watch_events_of_one_payload_have_separate_objects() -> None:
    payload = Encoded(msgspec.json.encode(object_at("5")))
    first, second = (WatchEvent(type=EventType.ADDED, payload=payload) for _ in range(2))
    first.object["metadata"]["name"] = "changed"
    assert second.object == object_at("5")


def test_shared_object_is_independent_of_owned_objects() -> None:
    payload = Encoded(msgspec.json.encode(object_at("5")))
    first, second = (WatchEvent(type=EventType.ADDED, payload=payload) for _ in range(2))
    assert first.shared is second.shared
    first.object["metadata"]["name"] = "changed"
    assert second.shared == object_at("5")


def test_event_without_payload_shares_its_object() -> None:
    event = WatchEvent(type=EventType.ADDED, object=object_at("5"))
    assert event.encoded is None
    assert event.shared is event.object


def test_events_are_equal_if_type_and_object_are_equal() -> None:
    encoded = WatchEvent(type=EventType.ADDED, payload=Encoded(msgspec.json.encode(object_at("5"))))
    assert encoded == WatchEvent(type=EventType.ADDED, object=object_at("5"))
    assert encoded != WatchEvent(type=EventType.MODIFIED, object=object_at("5"))
    assert encoded != WatchEvent(type=EventType.ADDED, object=object_at("6"))
    assert encoded != "an event"
