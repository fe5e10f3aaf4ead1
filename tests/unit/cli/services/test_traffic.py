from typing import Any

import pytest

from serving.cli.services.traffic import rollback_target
from serving.model.errors import ServingError

Json = dict[str, Any]

LATEST: Json = {"latestRevision": True, "percent": 100}


def service(*targets: Json) -> Json:
    named = [{"revisionName": "a-00003", **one} if one.get("latestRevision") else one for one in targets]
    return {"metadata": {"name": "a"}, "spec": {"traffic": list(targets)}, "status": {"traffic": named}}


def target(name: str, percent: int = 0, **more: str) -> Json:
    return {"revisionName": name, "latestRevision": False, "percent": percent, **more}


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
