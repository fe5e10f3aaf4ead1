from typing import Any

import pytest

from serving.core.model.errors import Conflict
from serving.home.store.durability import Disk, carried_over, disk_for, durable_part
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, REVISION


def revision(state: str | None = "Reserve", *, generation: int = 1, **rest: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    spec: dict[str, Any] = {"containers": []} | ({} if state is None else {"servingState": state})
    metadata = {"name": "one", "resourceVersion": "5", "generation": generation}
    return {"metadata": metadata, "spec": spec, **rest}


def test_the_status_and_the_version_are_not_durable() -> None:
    assert durable_part(revision(status={"x": 1})) == {
        "metadata": {"name": "one", "generation": 1},
        "spec": {"containers": [], "servingState": "Reserve"},
    }


def test_a_flip_does_not_wait_for_the_disk() -> None:
    assert disk_for(REVISION, revision("Reserve"), revision("Active", generation=2)) is Disk.BEHIND


def test_a_state_that_appears_does_not_wait_either() -> None:
    assert disk_for(REVISION, revision(None), revision("Active")) is Disk.BEHIND


def test_a_flip_with_a_label_waits() -> None:
    new = revision("Active")
    new["metadata"]["labels"] = {"a": "b"}
    assert disk_for(REVISION, revision("Reserve"), new) is Disk.AWAITED


def test_a_creation_waits() -> None:
    assert disk_for(REVISION, None, revision()) is Disk.AWAITED


def test_a_status_never_touches_the_disk() -> None:
    assert disk_for(REVISION, revision(), revision(status={"x": 1}), subresource="status") is Disk.NONE


def test_a_kind_that_is_rebuilt_never_touches_the_disk() -> None:
    assert disk_for(POD, None, {"metadata": {"name": "one"}}) is Disk.NONE


def test_a_scale_does_not_wait_for_the_disk() -> None:
    old, new = ({"metadata": {"name": "one"}, "spec": {"replicas": count}} for count in (0, 1))
    assert disk_for(DEPLOYMENT, old, new, subresource="scale") is Disk.BEHIND


@pytest.mark.parametrize(
    "metadata", [{"ownerReferences": [{"controller": True, "uid": "a"}]}, {"namespace": "knative-serving"}]
)
def test_a_deployment_that_is_made_again_never_touches_the_disk(metadata: dict[str, Any]) -> None:
    assert disk_for(DEPLOYMENT, None, {"metadata": {"name": "one", **metadata}}) is Disk.NONE


def test_other_kinds_have_nothing_that_passes_by() -> None:
    assert disk_for(CONFIG_MAP, {"metadata": {}, "data": {}}, {"metadata": {}, "data": {"a": "b"}}) is Disk.AWAITED


def labelled(state: str) -> dict[str, Any]:
    """The object of a durable write after ``revision("Reserve")``."""
    new = revision(state)
    new["metadata"]["labels"] = {"a": "b"}
    return new


def test_a_status_that_passed_by_stays() -> None:
    resource = carried_over(REVISION, revision(), labelled("Reserve"), present=revision(status={"x": 1}))
    assert (resource["metadata"]["labels"], resource["status"]) == ({"a": "b"}, {"x": 1})


def test_a_status_from_before_is_not_brought_back() -> None:
    assert "status" not in carried_over(
        REVISION, revision(), labelled("Reserve") | {"status": {"old": 1}}, present=revision()
    )


def test_a_flip_that_passed_by_stays() -> None:
    resource = carried_over(
        REVISION, revision("Reserve"), labelled("Reserve"), present=revision("Active", generation=2)
    )
    assert resource["spec"]["servingState"] == "Active"
    assert resource["metadata"]["labels"] == {"a": "b"}
    assert resource["metadata"]["generation"] == 3


def test_a_state_that_vanished_meanwhile_stays_away() -> None:
    resource = carried_over(REVISION, revision("Reserve"), labelled("Reserve"), present=revision(None, generation=2))
    assert "servingState" not in resource["spec"]


def test_a_written_state_stays_until_it_is_flipped() -> None:
    resource = carried_over(REVISION, revision("Reserve"), labelled("Retired"), present=revision("Reserve", status={}))
    assert resource["spec"]["servingState"] == "Retired"


def test_two_that_want_the_same_state_agree() -> None:
    resource = carried_over(REVISION, revision("Reserve"), labelled("Active"), present=revision("Active", generation=2))
    assert resource["spec"]["servingState"] == "Active"


def test_of_two_that_change_the_state_the_later_is_refused() -> None:
    with pytest.raises(Conflict):
        carried_over(REVISION, revision("Reserve"), labelled("Retired"), present=revision("Active"))


def test_a_kind_without_such_a_field_keeps_its_status() -> None:
    result = carried_over(CONFIG_MAP, {}, {"metadata": {}, "data": {"a": "b"}}, present={"metadata": {}, "status": 1})
    assert result == {"metadata": {}, "data": {"a": "b"}, "status": 1}
