from serving.core.model.scaledworkload import Schedule
from serving.core.scaling.policies.index import (
    Policies,
    Reason,
    StoredState,
    is_of_workload,
    policy_name_of,
    policy_of,
    schedules_as_policy,
    state_of,
    stored_state,
    targets_of,
)
from serving.core.scaling.policies.points import UsagePoint
from serving.core.scaling.policies.tick import TriggerPhase, TriggerState
from serving.net.cluster.schedules import schedule_problems
from tests.unit.core.scaling.policy_builders import ROOM_UP, manifest, policy, revision

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def test_policy_has_key_target_and_spec() -> None:
    scaling_policy_view = policy(min=1, max=3, up=ROOM_UP)
    assert (
        scaling_policy_view.key,
        scaling_policy_view.target.kind,
        scaling_policy_view.target.name,
        scaling_policy_view.problem,
    ) == (
        ("default", "p"),
        "Service",
        "hello",
        "",
    )
    assert scaling_policy_view.spec is not None
    assert scaling_policy_view.spec.up.triggers[0].usage_percent == 70


def test_deleted_policy_is_none() -> None:
    resource = manifest()
    resource["metadata"] = {"name": "p", "deletionTimestamp": "now"}
    assert policy_of(resource, schedule_problems) is None


def test_malformed_policy_is_unusable() -> None:
    scaling_policy_view = policy(min="many")
    assert scaling_policy_view.spec is None
    assert "Expected `int`" in scaling_policy_view.problem


def test_contradictory_policy_is_unusable() -> None:
    scaling_policy_view = policy(min=3, max=2)
    assert scaling_policy_view.spec is None
    assert "3 is above spec.max, 2" in scaling_policy_view.problem


def test_policy_without_target_is_unusable() -> None:
    scaling_policy_view = policy_of({"metadata": {"name": "p"}, "spec": {}}, schedule_problems)
    assert scaling_policy_view is not None
    assert (scaling_policy_view.spec, scaling_policy_view.problem) == (None, "spec.targetRef: it names no target")


def test_state_round_trips_through_stored_form() -> None:
    state = TriggerState(
        phase=TriggerPhase.SUBDIMENSIONED,
        phase_changed_at_s=10.0,
        last_change_at_s=None,
        points={"cpu": (UsagePoint(at_s=30.25, usage_ratio=0.5), UsagePoint(at_s=20.0, usage_ratio=0.25))},
    )
    new_state = stored_state(revision(), state)
    assert new_state.points == {"cpu": ((30250, 0.5), (20000, 0.25))}
    assert state_of(new_state) == state


def test_saved_state_is_read_from_status() -> None:
    result = {"name": "hello-00001", "uid": "r1", "lastChangeAtMs": 1500, "points": {"occupancy": [[1000, 0.5]]}}
    scaling_policy_view = policy(status={"revisions": [result]})
    assert scaling_policy_view.saved == (
        StoredState(name="hello-00001", uid="r1", last_change_at_ms=1500, points={"occupancy": ((1000, 0.5),)}),
    )
    assert state_of(scaling_policy_view.saved[0]).last_change_at_s == 1.5


def test_invalid_status_has_no_saved_state() -> None:
    assert policy(status={"revisions": [{"name": 5}]}).saved == ()


def test_revision_matches_three_target_kinds() -> None:
    assert [kind for _, kind, _ in targets_of(revision())] == ["Revision", "Configuration", "Service"]
    assert [kind for _, kind, _ in targets_of(revision(service=""))] == ["Revision"]


def test_closest_policy_holds_revision() -> None:
    policies = Policies()
    policies.put(policy("of-service"))
    assert policies.holder(revision()) == policies.get(("default", "of-service"))
    policies.put(policy("of-revision", kind="Revision", target="hello-00001"))
    assert policies.holder(revision()) == policies.get(("default", "of-revision"))
    policies.drop(("default", "of-revision"))
    assert policies.holder(revision()) == policies.get(("default", "of-service"))
    assert policies.holder(revision("other-00001", service="other")) is None


def test_older_policy_holds_target() -> None:
    policies, young, old = Policies(), policy("a", created=NEW), policy("b", created=OLD)
    policies.put(young)
    assert policies.put(old) == {young.key, old.key}
    assert policies.holder(revision()) == old
    attachment = policies.attachment(young, revisions=[], problems=[])
    assert (attachment.is_attached, attachment.reason) == (False, Reason.CONFLICT)
    assert attachment.message == "Service hello has the older policy b already; delete one of the two"
    assert policies.drop(old.key) == {young.key}
    assert policies.holder(revision()) == young


def test_policies_of_same_age_are_ordered_by_name() -> None:
    policies = Policies()
    policies.put(policy("b"))
    policies.put(policy("a"))
    assert policies.holder(revision()) == policies.get(("default", "a"))


def test_unusable_policy_does_not_replace_younger_policy() -> None:
    policies, bad = Policies(), policy("a", min=3, max=2, created=OLD)
    policies.put(bad)
    policies.put(policy("b", created=NEW))
    assert policies.holder(revision()) == policies.get(("default", "b"))
    assert policies.attachment(bad, revisions=[], problems=[]).reason is Reason.NOT_USABLE
    assert policies.drop(bad.key) == set()
    assert policies.drop(("default", "never")) == set()


def test_attachment_lists_revisions_or_problems() -> None:
    policies, scaling_policy_view = Policies(), policy()
    policies.put(scaling_policy_view)
    attachment = policies.attachment(scaling_policy_view, revisions=[("default", "b"), ("default", "a")], problems=[])
    assert (attachment.is_attached, attachment.message) == (True, "holds for a, b")
    attachment = policies.attachment(scaling_policy_view, revisions=[], problems=["x needs cpu"])
    assert (attachment.is_attached, attachment.reason, attachment.message) == (False, Reason.NO_REQUESTS, "x needs cpu")


def test_policy_without_target_object_reports_target_not_found() -> None:
    policies, scaling_policy_view, other = Policies(), policy(), policy("r", kind="Revision", target="gone")
    policies.put(scaling_policy_view)
    policies.put(other)
    attachment = policies.attachment(scaling_policy_view, revisions=[], problems=[])
    assert attachment.reason is Reason.TARGET_NOT_FOUND
    assert "no Service hello" in attachment.message
    assert policies.attachment(other, revisions=[], problems=[]).message.endswith(": there is none")


def test_workload_schedules_become_policy_of_its_revision() -> None:
    day = Schedule(start="0 8 * * *", end="0 18 * * *", min_count=2, time_zone="Europe/Berlin", name="day")
    body = schedules_as_policy({"metadata": {"namespace": "n", "name": "shop", "generation": 2}}, [day])
    scaling_policy_view = policy_of(body, lambda _: ())
    assert scaling_policy_view is not None
    assert (scaling_policy_view.key, scaling_policy_view.generation, scaling_policy_view.problem) == (
        ("n", policy_name_of("shop")),
        2,
        "",
    )
    assert (scaling_policy_view.target.kind, scaling_policy_view.target.name) == ("Revision", "shop")
    assert scaling_policy_view.spec is not None
    assert scaling_policy_view.spec.schedules == (day,)
    assert is_of_workload(scaling_policy_view.key[1])
    assert not is_of_workload("shop")
