from typing import Any

import pytest

from serving.core.model.errors import ServingError
from serving.net.cluster.servicepatch import (
    TrafficRequest,
    desired_traffic,
    newest_first,
    pinned_traffic,
    rollback_target,
    scale_patch,
    workload_scale_patch,
)

Json = dict[str, Any]

LATEST: Json = {"latestRevision": True, "percent": 100}


def service(*targets: Json) -> Json:
    named = [{"revisionName": "a-00003", **entry} if entry.get("latestRevision") else entry for entry in targets]
    return {"metadata": {"name": "a"}, "spec": {"traffic": list(targets)}, "status": {"traffic": named}}


def target(name: str, percent: int = 0, **more: str) -> Json:
    return {"revisionName": name, "latestRevision": False, "percent": percent, **more}


def test_traffic_shares_replace_existing_targets() -> None:
    traffic = desired_traffic(service(LATEST), TrafficRequest(shares={"a-00001": 90, "@latest": 10}))
    assert traffic == [target("a-00001", 90), {"latestRevision": True, "percent": 10}]


def test_tags_remain_with_their_revisions() -> None:
    now = service(target("a-00001", 50, tag="old"), target("a-00002", 50))
    assert desired_traffic(now, TrafficRequest(shares={"a-00002": 100})) == [
        target("a-00002", 100),
        target("a-00001", tag="old"),
    ]
    assert desired_traffic(now, TrafficRequest(shares={"a-00001": 100})) == [target("a-00001", 100, tag="old")]


def test_new_tags_do_not_change_shares() -> None:
    traffic = desired_traffic(
        service(LATEST), TrafficRequest(tags={"blue": "@latest", "red": "@latest", "old": "a-00001"})
    )
    assert traffic == [
        {**LATEST, "tag": "blue"},
        {"latestRevision": True, "percent": 0, "tag": "red"},
        target("a-00001", tag="old"),
    ]


def test_removed_tag_removes_its_empty_target() -> None:
    now = service(target("a-00002", 100), target("a-00001", tag="old"))
    assert desired_traffic(now, TrafficRequest(untagged=("old",))) == [target("a-00002", 100)]
    with pytest.raises(ServingError, match="'new' is not a tag of it; there are old"):
        desired_traffic(now, TrafficRequest(untagged=("new",)))


def test_shares_that_do_not_sum_to_100_are_rejected() -> None:
    with pytest.raises(ServingError, match="a-00001=90 a-00002=20 is 110 % together; expected 100 %"):
        desired_traffic(service(LATEST), TrafficRequest(shares={"a-00001": 90, "a-00002": 20}))


@pytest.mark.parametrize(
    ("targets", "pinned"),
    [
        ((), [target("a-00002", 100)]),
        ((LATEST,), [target("a-00002", 100)]),
        ((target("a-00001", 100),), [target("a-00001", 100)]),
        (
            (target("a-00002", 30), {**LATEST, "percent": 70, "tag": "new"}),
            [target("a-00002", 100), {"latestRevision": True, "percent": 0, "tag": "new"}],
        ),
    ],
)
def test_pinned_traffic_names_latest_ready_revision(targets: tuple[Json, ...], pinned: list[Json]) -> None:
    before = service(*targets)
    before["status"]["latestReadyRevisionName"] = "a-00002"
    assert pinned_traffic(before) == pinned


def test_pinning_traffic_without_ready_revision_is_rejected() -> None:
    with pytest.raises(ServingError, match="no revision of a is ready"):
        pinned_traffic(service(LATEST))


def test_scale_patch_replaces_both_annotation_spellings() -> None:
    patch = scale_patch({"spec": {"template": {}}}, {"min-scale": "1", "window": "6s"})
    group = "autoscaling.knative.dev/"
    annotations = {f"{group}min-scale": "1", f"{group}minScale": None, f"{group}window": "6s"}
    assert patch == {"spec": {"template": {"metadata": {"annotations": annotations}}}}


def test_scale_patch_clears_revision_name() -> None:
    patch = scale_patch({"spec": {"template": {"metadata": {"name": "a-mine"}}}}, {"max-scale": "0"})
    assert patch["spec"]["template"]["metadata"]["name"] is None
    assert patch["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/max-scale"] == "0"


def revision(name: str, ready: str = "True", generation: str = "") -> Json:
    labels = {"serving.knative.dev/configurationGeneration": generation} if generation else {}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def test_rollback_target_is_newest_older_ready_revision() -> None:
    revisions = [revision("a-00003"), revision("a-00002", "False"), revision("a-00001")]
    assert rollback_target(service(LATEST), revisions) == "a-00001"


@pytest.mark.parametrize("percent", [1, 40, 99])
def test_rollback_target_of_rollout_is_its_previous_revision(percent: int) -> None:
    split = service(target("a-00003", percent), target("a-00002", 100 - percent), target("a-00004", tag="next"))
    revisions = [revision(f"a-0000{number}") for number in (4, 3, 2, 1)]
    assert rollback_target(split, revisions) == "a-00002"


def test_rollback_without_target_is_rejected() -> None:
    with pytest.raises(
        ServingError, match="a-00003 is the newest revision with traffic, and no older revision is ready"
    ):
        rollback_target(service(LATEST), [revision("a-00003")])
    with pytest.raises(ServingError, match="no revision has traffic"):
        rollback_target(service(), [])


def test_revisions_are_sorted_by_generation_newest_first() -> None:
    newest_firsts = newest_first(
        [revision("b", generation="9"), revision("a", generation="10"), revision("c", generation="x")]
    )
    assert [resource["metadata"]["name"] for resource in newest_firsts] == ["a", "b", "c"]


def test_workload_scale_patch_uses_spec_keys_and_annotations_for_others() -> None:
    scaling = {"min-scale": "1", "max-scale": "5", "target": "2.5", "window": "30s"}
    assert workload_scale_patch(scaling) == {"spec": {"scaling": {"min": 1, "max": 5, "target": 2.5, "window": "30s"}}}
    patch = workload_scale_patch({"initial-scale": "2"})
    assert patch["spec"] == {"scaling": {}}
    assert patch["metadata"]["annotations"]["autoscaling.knative.dev/initial-scale"] == "2"
