"""Field owners after updates and server-side applies."""

from typing import Any

import pytest

from serving.core.model.errors import ApplyConflict, Invalid
from serving.home.schemas.ownership.managers import FieldWriter, after_apply, after_update, without_nulls
from serving.net.cluster.kinds import CONFIG_MAP, POD

Object = dict[str, Any]
NOON, LATER = "2024-01-01T12:00:00Z", "2024-01-01T13:00:00Z"


def configured(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def pod(*containers: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": list(containers)}}


def applied(old: Object | None, config: Object, manager: str = "a", *, force: bool = False, at: str = NOON) -> Object:
    kind = POD if config["kind"] == "Pod" else CONFIG_MAP
    return after_apply(kind, old, config, writer=FieldWriter(manager=manager, stamp=at), force=force)


def updated(old: Object | None, new: Object, manager: str = "u", *, at: str = NOON, sent: object = None) -> Object:
    result = {**new, "metadata": {**new["metadata"]}}
    return after_update(CONFIG_MAP, old, result, writer=FieldWriter(manager=manager, stamp=at), sent=sent)


def owners(whole: Object) -> dict[str, Object]:
    return {
        managed_field["manager"]: managed_field["fieldsV1"]
        for managed_field in whole["metadata"].get("managedFields", ())
    }


def test_update_owns_the_fields_of_a_new_object() -> None:
    (entry,) = updated(None, configured(x="1"))["metadata"]["managedFields"]
    assert entry == {
        "manager": "u",
        "operation": "Update",
        "apiVersion": "v1",
        "time": NOON,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {".": {}, "f:x": {}}},
    }


def test_update_owns_changed_and_removed_fields() -> None:
    result = applied(None, configured(x="1", y="2"))
    result = updated(result, {**result, "data": {"x": "3", "z": "4"}})
    assert owners(result) == {"u": {"f:data": {"f:x": {}, "f:z": {}}}}


def test_update_of_an_object_without_owners_adds_none() -> None:
    assert "managedFields" not in updated(configured(x="1"), configured(x="2"))["metadata"]


def test_apply_conflict_names_every_field_and_its_manager() -> None:
    result = updated(None, configured(x="2", y="2"))
    with pytest.raises(ApplyConflict) as raised:
        applied(result, configured(x="1", y="1"))
    assert [(owned_field.path, owned_field.manager) for owned_field in raised.value.fields] == [
        (".data.x", '"u" using v1'),
        (".data.y", '"u" using v1'),
    ]
    assert str(raised.value) == 'Apply failed with 2 conflicts: conflicts with "u" using v1:\n- .data.x\n- .data.y'


def test_forced_apply_takes_field_ownership() -> None:
    entry = applied(updated(None, configured(x="2", y="2")), configured(x="1"), force=True)
    assert entry["data"] == {"x": "1", "y": "2"}
    assert owners(entry) == {"a": {"f:data": {"f:x": {}}}, "u": {"f:data": {".": {}, "f:y": {}}}}


def test_equal_applied_value_is_owned_by_both_managers() -> None:
    entry = applied(applied(None, configured(x="1")), configured(x="1"), manager="b")
    assert owners(entry)["a"] == owners(entry)["b"]
    entry = applied(entry, configured(y="2"))
    assert entry["data"] == {"x": "1", "y": "2"}
    entry = applied(entry, configured(y="2"), manager="b")
    assert entry["data"] == {"y": "2"}


def test_omitted_applied_field_is_removed() -> None:
    entry = applied(applied(None, configured(x="1", y="2")), configured(x="1"))
    assert entry["data"] == {"x": "1"}
    assert applied(entry, configured())["data"] == {}


def test_unchanged_apply_is_a_no_op_and_owner_retains_its_time() -> None:
    result = applied(None, configured(x="1"))
    assert applied(result, configured(x="1"), at=LATER) == result
    assert applied(result, configured(x="2"), at=LATER)["metadata"]["managedFields"][0]["time"] == NOON


def test_apply_merges_containers_and_ports_by_key() -> None:
    resource = applied(None, pod({"name": "a", "image": "i", "ports": [{"containerPort": 53}]}))
    other = pod({"name": "b", "image": "j"}, {"name": "a", "ports": [{"containerPort": 53, "protocol": "UDP"}]})
    resource = applied(resource, other, manager="b")
    assert [container["name"] for container in resource["spec"]["containers"]] == ["b", "a"]
    assert [port.get("protocol") for port in resource["spec"]["containers"][1]["ports"]] == [None, "UDP"]
    resource = applied(resource, pod({"name": "b", "image": "j"}), manager="b")
    assert [port.get("protocol") for port in resource["spec"]["containers"][1]["ports"]] == [None]


def test_server_defaults_are_removed_with_their_list_element() -> None:
    resource = applied(None, pod({"name": "a", "image": "i"}, {"name": "b", "image": "j"}))
    for container in resource["spec"]["containers"]:
        container["imagePullPolicy"] = "Always"
    resource = applied(resource, pod({"name": "a", "image": "i"}))
    assert resource["spec"]["containers"] == [{"name": "a", "image": "i", "imagePullPolicy": "Always"}]


def test_object_without_remaining_fields_is_removed() -> None:
    resource = applied(None, pod({"name": "a", "image": "i", "resources": {"limits": {"cpu": "1"}}}))
    resource = applied(resource, pod({"name": "a", "image": "i"}))
    assert resource["spec"]["containers"] == [{"name": "a", "image": "i"}]


def test_list_elements_with_duplicate_keys_are_rejected() -> None:
    with pytest.raises(Invalid, match=r'\.spec\.containers: .*duplicate entries for key \[name="a"\]'):
        applied(None, pod({"name": "a"}, {"name": "a"}))


def test_client_can_replace_or_clear_managed_fields() -> None:
    resource = applied(None, configured(x="1"))
    mine = [{**resource["metadata"]["managedFields"][0], "manager": "b"}]
    assert set(owners(updated(resource, resource, sent=mine))) == {"b"}
    assert owners(updated(resource, resource, sent=[{}])) == {}
    assert set(owners(updated(resource, resource, sent=[{"manager": 1}]))) == {"a"}


def test_managed_fields_entries_are_limited() -> None:
    entry = updated(None, configured(x="0"))
    for number in range(20):
        entry = updated(entry, {**entry, "data": {**entry["data"], f"k{number}": "1"}}, manager=f"m{number}", at=LATER)
    assert len(owners(entry)) == 10
    assert "ancient-changes" in owners(entry)


def test_without_nulls_removes_null_fields() -> None:
    assert without_nulls({"a": None, "b": [{"c": None}]}) == {"b": [{}]}
