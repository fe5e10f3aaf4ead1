from typing import Any

import pytest

from serving.cli.traffic import Asked, desired_traffic, rollback_target
from serving.model.errors import ServingError

Json = dict[str, Any]


def service(*targets: Json) -> Json:
    named = [{"revisionName": "a-00003", **one} if one.get("latestRevision") else one for one in targets]
    return {"metadata": {"name": "a"}, "spec": {"traffic": list(targets)}, "status": {"traffic": named}}


def target(name: str, percent: int = 0, **more: str) -> Json:
    return {"revisionName": name, "latestRevision": False, "percent": percent, **more}


LATEST: Json = {"latestRevision": True, "percent": 100}


def test_shares_replace_what_was_there() -> None:
    found = desired_traffic(service(LATEST), Asked(shares={"a-00001": 90, "@latest": 10}))
    assert found == [target("a-00001", 90), {"latestRevision": True, "percent": 10}]


def test_tags_stay_with_their_revisions() -> None:
    now = service(target("a-00001", 50, tag="old"), target("a-00002", 50))
    assert desired_traffic(now, Asked(shares={"a-00002": 100})) == [
        target("a-00002", 100),
        target("a-00001", tag="old"),
    ]
    assert desired_traffic(now, Asked(shares={"a-00001": 100})) == [target("a-00001", 100, tag="old")]


def test_a_tag_alone_leaves_the_shares() -> None:
    found = desired_traffic(service(LATEST), Asked(tags={"blue": "@latest", "red": "@latest", "old": "a-00001"}))
    assert found == [
        {**LATEST, "tag": "blue"},
        {"latestRevision": True, "percent": 0, "tag": "red"},
        target("a-00001", tag="old"),
    ]


def test_a_tag_that_is_taken_away_takes_its_empty_target_along() -> None:
    now = service(target("a-00002", 100), target("a-00001", tag="old"))
    assert desired_traffic(now, Asked(untagged=("old",))) == [target("a-00002", 100)]
    with pytest.raises(ServingError, match="'new' is not a tag of it; there are old"):
        desired_traffic(now, Asked(untagged=("new",)))


def test_shares_are_100_together() -> None:
    with pytest.raises(ServingError, match="a-00001=90 a-00002=20 is 110 % together; expected 100 %"):
        desired_traffic(service(LATEST), Asked(shares={"a-00001": 90, "a-00002": 20}))


def revision(name: str, ready: str = "True") -> Json:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def test_back_is_the_newest_older_revision_that_is_ready() -> None:
    revisions = [revision("a-00003"), revision("a-00002", "False"), revision("a-00001")]
    assert rollback_target(service(LATEST), revisions) == "a-00001"
    split = service(target("a-00003", 40), target("a-00002", 60))
    assert rollback_target(split, [revision("a-00003"), revision("a-00002"), revision("a-00001")]) == "a-00001"


def test_there_may_be_nothing_to_go_back_to() -> None:
    with pytest.raises(ServingError, match="a-00003 has most of the traffic, and no older revision is ready"):
        rollback_target(service(LATEST), [revision("a-00003")])
    with pytest.raises(ServingError, match="no revision has traffic"):
        rollback_target(service(), [])
