"""Owners of fields after updates and applies."""

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
    kept = {**new, "metadata": {**new["metadata"]}}
    return after_update(CONFIG_MAP, old, kept, writer=FieldWriter(manager=manager, stamp=at), sent=sent)


def owners(whole: Object) -> dict[str, Object]:
    return {one["manager"]: one["fieldsV1"] for one in whole["metadata"].get("managedFields", ())}


def test_an_update_owns_what_it_creates() -> None:
    (entry,) = updated(None, configured(x="1"))["metadata"]["managedFields"]
    assert entry == {
        "manager": "u",
        "operation": "Update",
        "apiVersion": "v1",
        "time": NOON,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {".": {}, "f:x": {}}},
    }


def test_an_update_takes_the_fields_that_it_changes_from_their_owner() -> None:
    made = applied(None, configured(x="1", y="2"))
    made = updated(made, {**made, "data": {"x": "3", "z": "4"}})
    assert owners(made) == {"u": {"f:data": {"f:x": {}, "f:z": {}}}}


def test_an_update_of_an_object_without_owners_leaves_it_so() -> None:
    assert "managedFields" not in updated(configured(x="1"), configured(x="2"))["metadata"]


def test_a_conflict_names_every_field_and_its_manager() -> None:
    made = updated(None, configured(x="2", y="2"))
    with pytest.raises(ApplyConflict) as raised:
        applied(made, configured(x="1", y="1"))
    assert [(one.path, one.manager) for one in raised.value.fields] == [
        (".data.x", '"u" using v1'),
        (".data.y", '"u" using v1'),
    ]
    assert str(raised.value) == 'Apply failed with 2 conflicts: conflicts with "u" using v1:\n- .data.x\n- .data.y'


def test_force_takes_the_field() -> None:
    made = applied(updated(None, configured(x="2", y="2")), configured(x="1"), force=True)
    assert made["data"] == {"x": "1", "y": "2"}
    assert owners(made) == {"a": {"f:data": {"f:x": {}}}, "u": {"f:data": {".": {}, "f:y": {}}}}


def test_the_same_value_is_owned_by_both() -> None:
    made = applied(applied(None, configured(x="1")), configured(x="1"), manager="b")
    assert owners(made)["a"] == owners(made)["b"]
    made = applied(made, configured(y="2"))
    assert made["data"] == {"x": "1", "y": "2"}
    made = applied(made, configured(y="2"), manager="b")
    assert made["data"] == {"y": "2"}


def test_a_field_that_is_no_longer_stated_goes() -> None:
    made = applied(applied(None, configured(x="1", y="2")), configured(x="1"))
    assert made["data"] == {"x": "1"}
    assert applied(made, configured())["data"] == {}


def test_an_apply_that_states_the_same_keeps_its_time() -> None:
    made = applied(None, configured(x="1"))
    assert applied(made, configured(x="1"), at=LATER) == made
    assert applied(made, configured(x="2"), at=LATER)["metadata"]["managedFields"][0]["time"] == NOON


def test_containers_and_their_ports_are_maps() -> None:
    made = applied(None, pod({"name": "a", "image": "i", "ports": [{"containerPort": 53}]}))
    other = pod({"name": "b", "image": "j"}, {"name": "a", "ports": [{"containerPort": 53, "protocol": "UDP"}]})
    made = applied(made, other, manager="b")
    assert [one["name"] for one in made["spec"]["containers"]] == ["b", "a"]
    assert [one.get("protocol") for one in made["spec"]["containers"][1]["ports"]] == [None, "UDP"]
    made = applied(made, pod({"name": "b", "image": "j"}), manager="b")
    assert [one.get("protocol") for one in made["spec"]["containers"][1]["ports"]] == [None]


def test_what_the_server_filled_in_goes_with_its_list_element() -> None:
    made = applied(None, pod({"name": "a", "image": "i"}, {"name": "b", "image": "j"}))
    for container in made["spec"]["containers"]:
        container["imagePullPolicy"] = "Always"
    made = applied(made, pod({"name": "a", "image": "i"}))
    assert made["spec"]["containers"] == [{"name": "a", "image": "i", "imagePullPolicy": "Always"}]


def test_an_object_that_loses_its_last_field_goes() -> None:
    made = applied(None, pod({"name": "a", "image": "i", "resources": {"limits": {"cpu": "1"}}}))
    made = applied(made, pod({"name": "a", "image": "i"}))
    assert made["spec"]["containers"] == [{"name": "a", "image": "i"}]


def test_elements_with_the_same_keys_are_rejected() -> None:
    with pytest.raises(Invalid, match=r'\.spec\.containers: .*duplicate entries for key \[name="a"\]'):
        applied(None, pod({"name": "a"}, {"name": "a"}))


def test_a_client_may_replace_or_remove_the_owners() -> None:
    made = applied(None, configured(x="1"))
    mine = [{**made["metadata"]["managedFields"][0], "manager": "b"}]
    assert set(owners(updated(made, made, sent=mine))) == {"b"}
    assert owners(updated(made, made, sent=[{}])) == {}
    assert set(owners(updated(made, made, sent=[{"manager": 1}]))) == {"a"}


def test_owners_are_bounded() -> None:
    made = updated(None, configured(x="0"))
    for number in range(20):
        made = updated(made, {**made, "data": {**made["data"], f"k{number}": "1"}}, manager=f"m{number}", at=LATER)
    assert len(owners(made)) == 10
    assert "ancient-changes" in owners(made)


def test_empty_fields_are_not_stated() -> None:
    assert without_nulls({"a": None, "b": [{"c": None}]}) == {"b": [{}]}
