from typing import Any

import pytest

from serving.core.model.errors import Conflict
from serving.home.store.durability import Disk, carried_over, disk_for, durable_part
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, REVISION


def revision(state: str | None = "Reserve", *, generation: int = 1, **rest: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    spec: dict[str, Any] = {"containers": []} | ({} if state is None else {"servingState": state})
    metadata = {"name": "one", "resourceVersion": "5", "generation": generation}
    return {"metadata": metadata, "spec": spec, **rest}


def test_status_and_resource_version_are_not_durable() -> None:
    assert durable_part(revision(status={"x": 1})) == {
        "metadata": {"name": "one", "generation": 1},
        "spec": {"containers": [], "servingState": "Reserve"},
    }


def test_changed_serving_state_is_written_behind() -> None:
    assert disk_for(REVISION, revision("Reserve"), revision("Active", generation=2)) is Disk.BEHIND


def test_new_serving_state_is_written_behind() -> None:
    assert disk_for(REVISION, revision(None), revision("Active")) is Disk.BEHIND


def test_changed_serving_state_with_label_awaits_the_disk() -> None:
    new = revision("Active")
    new["metadata"]["labels"] = {"a": "b"}
    assert disk_for(REVISION, revision("Reserve"), new) is Disk.AWAITED


def test_creation_awaits_the_disk() -> None:
    assert disk_for(REVISION, None, revision()) is Disk.AWAITED


def test_status_is_not_written_to_disk() -> None:
    assert disk_for(REVISION, revision(), revision(status={"x": 1}), subresource="status") is Disk.NONE


def test_pods_are_not_written_to_disk() -> None:
    assert disk_for(POD, None, {"metadata": {"name": "one"}}) is Disk.NONE


def test_scale_is_written_behind() -> None:
    old, new = ({"metadata": {"name": "one"}, "spec": {"replicas": count}} for count in (0, 1))
    assert disk_for(DEPLOYMENT, old, new, subresource="scale") is Disk.BEHIND


@pytest.mark.parametrize(
    "metadata", [{"ownerReferences": [{"controller": True, "uid": "a"}]}, {"namespace": "knative-serving"}]
)
def test_derived_deployment_is_not_written_to_disk(metadata: dict[str, Any]) -> None:
    assert disk_for(DEPLOYMENT, None, {"metadata": {"name": "one", **metadata}}) is Disk.NONE


def test_config_map_data_awaits_the_disk() -> None:
    assert disk_for(CONFIG_MAP, {"metadata": {}, "data": {}}, {"metadata": {}, "data": {"a": "b"}}) is Disk.AWAITED


def labelled(state: str) -> dict[str, Any]:
    """The object of a durable write after ``revision("Reserve")``."""
    new = revision(state)
    new["metadata"]["labels"] = {"a": "b"}
    return new


def test_carried_over_object_retains_concurrent_status() -> None:
    resource = carried_over(REVISION, revision(), labelled("Reserve"), present=revision(status={"x": 1}))
    assert (resource["metadata"]["labels"], resource["status"]) == ({"a": "b"}, {"x": 1})


def test_carried_over_object_drops_outdated_status() -> None:
    assert "status" not in carried_over(
        REVISION, revision(), labelled("Reserve") | {"status": {"old": 1}}, present=revision()
    )


def test_carried_over_object_retains_concurrent_serving_state() -> None:
    resource = carried_over(
        REVISION, revision("Reserve"), labelled("Reserve"), present=revision("Active", generation=2)
    )
    assert resource["spec"]["servingState"] == "Active"
    assert resource["metadata"]["labels"] == {"a": "b"}
    assert resource["metadata"]["generation"] == 3


def test_carried_over_object_retains_removed_serving_state() -> None:
    resource = carried_over(REVISION, revision("Reserve"), labelled("Reserve"), present=revision(None, generation=2))
    assert "servingState" not in resource["spec"]


def test_carried_over_object_retains_its_written_serving_state() -> None:
    resource = carried_over(REVISION, revision("Reserve"), labelled("Retired"), present=revision("Reserve", status={}))
    assert resource["spec"]["servingState"] == "Retired"


def test_equal_concurrent_serving_states_do_not_conflict() -> None:
    resource = carried_over(REVISION, revision("Reserve"), labelled("Active"), present=revision("Active", generation=2))
    assert resource["spec"]["servingState"] == "Active"


def test_different_concurrent_serving_states_conflict() -> None:
    with pytest.raises(Conflict):
        carried_over(REVISION, revision("Reserve"), labelled("Retired"), present=revision("Active"))


def test_carried_over_config_map_retains_present_status() -> None:
    result = carried_over(CONFIG_MAP, {}, {"metadata": {}, "data": {"a": "b"}}, present={"metadata": {}, "status": 1})
    assert result == {"metadata": {}, "data": {"a": "b"}, "status": 1}
