"""The revisions that garbage collection may delete."""

import msgspec
import pytest

from serving.controller.revisions.configuration import collectable
from serving.core.model.knative import NO_GC_ANNOTATION, ROUTING_STATE_LABEL, ROUTING_STATE_MODIFIED_ANNOTATION
from serving.core.model.objects import Object
from serving.core.settings.controller import DISABLED, ControllerSettings
from tests.unit.controller.builders import SETTINGS, a_configuration, a_revision, stored

NOW = "2026-11-21T04:00:00Z"
KEEP_NONE = msgspec.structs.replace(SETTINGS, min_non_active_revisions=0)


def idle(number: int, *, created: str = "2026-11-10", inactive: str = "", **metadata: object) -> Object:
    """A revision that has had no traffic since ``inactive``."""
    revision = a_revision(generation=number)
    labels = {**revision["metadata"]["labels"], ROUTING_STATE_LABEL: "reserve"}
    annotations = {ROUTING_STATE_MODIFIED_ANNOTATION: f"{inactive or created}T00:00:00Z"}
    more = {"labels": labels, "annotations": annotations, "creationTimestamp": f"{created}T00:00:00Z", **metadata}
    return stored(revision, **more)


def gone(
    *revisions: Object, settings: ControllerSettings = KEEP_NONE, latest: dict[str, str] | None = None
) -> list[str]:
    configuration = {**a_configuration(generation=99), "status": latest or {}}
    return [resource["metadata"]["name"] for resource in collectable(configuration, revisions, settings, now=NOW)]


def test_revision_older_than_both_retention_times_is_collected() -> None:
    assert gone(idle(1)) == ["hello-00001"]


@pytest.mark.parametrize(
    ("created", "inactive"), [("2026-11-20", "2026-11-01"), ("2026-11-01", "2026-11-21"), ("2026-11-21", "2026-11-21")]
)
def test_revision_younger_than_a_retention_time_is_retained(created: str, inactive: str) -> None:
    assert gone(idle(1, created=created, inactive=inactive)) == []


def test_longest_inactive_revisions_above_minimum_are_collected() -> None:
    revisions = [idle(number, inactive=f"2026-11-{number:02d}") for number in (*range(2, 15), *range(2, 14))]
    revisions = [stored(revision, name=f"r{index:02d}") for index, revision in enumerate(revisions)]
    assert gone(*revisions, settings=SETTINGS) == ["r00", "r13", "r01", "r14", "r02"]


def test_oldest_revisions_above_maximum_are_collected_at_any_age() -> None:
    settings = msgspec.structs.replace(KEEP_NONE, max_non_active_revisions=1)
    young = [idle(number, created=f"2026-11-{number}") for number in (19, 20, 21)]
    assert gone(*young, settings=settings) == ["hello-00019", "hello-00020"]


@pytest.mark.parametrize("state", ["active", "pending"])
def test_active_or_pending_revision_is_retained(state: str) -> None:
    labels = {**a_revision()["metadata"]["labels"], ROUTING_STATE_LABEL: state}
    assert gone(idle(1, labels=labels)) == []


@pytest.mark.parametrize("field", ["latestReadyRevisionName", "latestCreatedRevisionName"])
def test_latest_created_and_latest_ready_are_retained(field: str) -> None:
    assert gone(idle(1), latest={field: "hello-00001"}) == []


def test_revision_with_no_gc_annotation_is_retained() -> None:
    assert gone(idle(1, annotations={NO_GC_ANNOTATION: "True"})) == []


def test_retired_or_terminating_revision_is_not_collected_again() -> None:
    retired = {**idle(1), "spec": {"servingState": "Retired"}}
    assert gone(retired, idle(2, deletionTimestamp=NOW)) == []


@pytest.mark.parametrize(
    ("create_s", "active_s", "names"),
    [(DISABLED, DISABLED, []), (DISABLED, 3600.0, ["hello-00001"]), (3600.0, DISABLED, ["hello-00001"])],
)
def test_disabled_retention_time_is_ignored(create_s: float, active_s: float, names: list[str]) -> None:
    settings = msgspec.structs.replace(
        KEEP_NONE,
        retain_since_create_time_s=create_s,
        retain_since_last_active_time_s=active_s,
        max_non_active_revisions=DISABLED,
    )
    assert gone(idle(1), settings=settings) == names


def test_revision_that_never_had_traffic_is_collected_by_creation_time() -> None:
    assert gone(idle(1, annotations={})) == ["hello-00001"]


def test_revision_without_timestamps_is_retained() -> None:
    assert gone(idle(1, annotations={}, creationTimestamp=None)) == []
