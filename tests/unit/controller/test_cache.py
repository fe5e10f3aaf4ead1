"""The objects that a change enqueues, and plans from the cache."""

from typing import Any

import msgspec
import pytest

from serving.controller.cache import ControllerCache, activator_pages, holder_of
from serving.controller.decide import decide
from serving.controller.revisions.deployment import desired_private_service
from serving.controller.revisions.sidecar import Sidecar
from serving.controller.routes.rolloutcheck import RolloutJudgement, RolloutVerdict
from serving.controller.values.writes import WorkKey, WritePlan
from serving.core.model.knative import (
    BECAME_READY_ANNOTATION,
    LEARNT_ANNOTATION,
    ROUTES_ANNOTATION,
    ROUTING_STATE_LABEL,
)
from serving.core.model.objects import Object
from serving.core.settings.queueproxy import QueueProxySettings
from serving.core.settings.sidecar import SidecarSettings
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Patch
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SCALING,
    SETTINGS,
    a_cache,
    a_configuration,
    a_deployment,
    a_pod,
    a_revision,
    a_route,
    a_service,
    condition_values,
    merged,
    stored,
    with_ready,
    written_status,
)
from tests.unit.controller.revisions.test_sidecar import SIDECAR

SERVICE: WorkKey = (kinds.SERVING_SERVICE, "default", "hello")
CONFIGURATION: WorkKey = (kinds.CONFIGURATION, "default", "hello")
ROUTE: WorkKey = (kinds.ROUTE, "default", "hello")
REVISION: WorkKey = (kinds.REVISION, "default", "hello-00001")
BLUE = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]
BOUND = {"type": "PodScheduled", "status": "True"}
UNBOUND = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
PULLING = {"name": "app", "state": {"waiting": {"reason": "ErrImagePull"}}}


def cache_with(*objects: tuple[Kind, Object]) -> ControllerCache:
    return a_cache(*objects)


def newer(fields: Object, **changes: object) -> Object:
    """A later state of an object."""
    return {**stored(fields, resourceVersion="8"), **changes}


def test_changed_service_enqueues_itself() -> None:
    assert cache_with((kinds.SERVING_SERVICE, a_service())).put(kinds.SERVING_SERVICE, newer(a_service())) == {SERVICE}


def test_new_owner_enqueues_its_children() -> None:
    assert cache_with().put(kinds.SERVING_SERVICE, a_service()) == {SERVICE, CONFIGURATION, ROUTE}
    cache = a_cache((kinds.REVISION, a_revision()), with_owners=False)
    assert REVISION in cache.put(kinds.CONFIGURATION, a_configuration())


@pytest.mark.parametrize("state", ["missing", "another", "being deleted"])
def test_object_without_live_owner_is_not_reconciled(state: str) -> None:
    owners = {
        "missing": [],
        "another": [(kinds.SERVING_SERVICE, stored(a_service(), uid="other"))],
        "being deleted": [(kinds.SERVING_SERVICE, stored(a_service(), deletionTimestamp=NOW))],
    }
    cache = a_cache(*owners[state], (kinds.ROUTE, a_route()), with_owners=False)
    assert decide(cache, ROUTE, now=NOW, now_s=NOW_S) == WritePlan()
    cache.put(kinds.SERVING_SERVICE, stored(a_service(), resourceVersion="9"))
    assert decide(cache, ROUTE, now=NOW, now_s=NOW_S) != WritePlan()


def test_object_without_owner_reference_is_reconciled() -> None:
    other = {"apiVersion": "v1", "kind": "Service", "name": "hello", "uid": "gone"}
    for references in ([], [other]):
        cache = a_cache((kinds.ROUTE, stored(a_route(), ownerReferences=references)), with_owners=False)
        assert decide(cache, ROUTE, now=NOW, now_s=NOW_S) != WritePlan()


def test_child_enqueues_its_service() -> None:
    assert cache_with().put(kinds.CONFIGURATION, a_configuration()) == {CONFIGURATION, SERVICE}
    assert cache_with().put(kinds.ROUTE, a_route()) == {ROUTE, SERVICE}


def test_configuration_enqueues_routes_that_name_it() -> None:
    cache = cache_with((kinds.ROUTE, a_route()))
    assert ROUTE in cache.put(kinds.CONFIGURATION, a_configuration())


def test_configuration_enqueues_newest_and_previous_revision() -> None:
    before = {**a_configuration(), "status": {"latestCreatedRevisionName": "hello-00001"}}
    cache = cache_with((kinds.CONFIGURATION, before))
    woken = cache.put(kinds.CONFIGURATION, newer(before, status={"latestCreatedRevisionName": "hello-00002"}))
    assert {REVISION, (kinds.REVISION, "default", "hello-00002")} <= woken


def of_earlier_process(state: str, **annotations: str) -> Object:
    """A revision as it is persisted: labels and annotations, and no status."""
    revision = a_revision()
    labels = {**revision["metadata"]["labels"], "serving.knative.dev/routingState": state}
    became_ready = {BECAME_READY_ANNOTATION: NOW, "serving.knative.dev/routingStateModified": NOW, **annotations}
    return stored(revision, labels=labels, annotations=became_ready)


def metadata_written(plan: WritePlan) -> list[Object]:
    patches = [write.patch for write in plan.writes if isinstance(write, Patch) and write.kind is kinds.REVISION]
    return [patch["metadata"] for patch in patches if "labels" in patch.get("metadata", {})]


def test_routed_revision_keeps_state_until_route_has_status() -> None:
    revision = of_earlier_process("active", **{"serving.knative.dev/routes": "hello"})
    cache = cache_with((kinds.REVISION, revision), (kinds.ROUTE, a_route()))
    plan = decide(cache, REVISION, now=NOW, now_s=NOW_S)
    assert metadata_written(plan) == []
    assert plan.again_after_s == 10.0
    traffic = [{"revisionName": "hello-00002", "percent": 100}]
    cache.put(kinds.ROUTE, newer(a_route(), status={"observedGeneration": 1, "traffic": traffic}))
    plan = decide(cache, REVISION, now=NOW, now_s=NOW_S)
    assert [entry["labels"]["serving.knative.dev/routingState"] for entry in metadata_written(plan)] == ["pending"]


def test_replica_count_uses_ready_pods_if_counts_pods_is_set() -> None:
    revision = a_revision()
    is_ready: Object = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = [a_pod("a", **is_ready), stored(a_pod("b", **is_ready), deletionTimestamp=NOW), a_pod("c")]
    cache = cache_with(
        (kinds.REVISION, revision),
        (kinds.DEPLOYMENT, a_deployment(revision, ready=7)),
        *((kinds.POD, pod) for pod in pods),
    )
    for counts_pods, count in ((False, 7), (True, 1)):
        cache.counts_pods = counts_pods
        plan = decide(cache, REVISION, now=NOW, now_s=NOW_S)
        assert written_status(plan, kinds.REVISION)["actualReplicas"] == count


def test_revision_of_deleted_route_is_in_reserve() -> None:
    revision = of_earlier_process("active", **{"serving.knative.dev/routes": "hello"})
    plan = decide(cache_with((kinds.REVISION, revision)), REVISION, now=NOW, now_s=NOW_S)
    assert [entry["labels"]["serving.knative.dev/routingState"] for entry in metadata_written(plan)] == ["reserve"]


def test_reserve_revision_keeps_state_until_configuration_has_status() -> None:
    cache = cache_with((kinds.REVISION, of_earlier_process("reserve")), (kinds.ROUTE, a_route()))
    assert metadata_written(decide(cache, REVISION, now=NOW, now_s=NOW_S)) == []
    status = {"latestCreatedRevisionName": "hello-00001"}
    cache.put(kinds.CONFIGURATION, newer(a_configuration(), status=status))
    plan = decide(cache, REVISION, now=NOW, now_s=NOW_S)
    assert [entry["labels"]["serving.knative.dev/routingState"] for entry in metadata_written(plan)] == ["pending"]


def test_deployment_and_pod_enqueue_their_revision() -> None:
    revision = a_revision()
    for resource, result in ((kinds.DEPLOYMENT, a_deployment(revision)), (kinds.POD, a_pod(podIP="10.0.0.1"))):
        assert cache_with().put(resource, result) == {REVISION}
        assert cache_with((resource, result)).drop(resource, ("default", result["metadata"]["name"])) == {REVISION}


@pytest.mark.parametrize(
    ("status", "is_read"),
    [
        ({"phase": "Pending"}, False),
        ({"phase": "Pending", "hostIP": "10.0.0.9", "conditions": [BOUND]}, False),
        ({"phase": "Failed"}, True),
        ({"conditions": [UNBOUND]}, True),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, True),
        ({"containerStatuses": [PULLING]}, True),
        ({"podIPs": [{"ip": "10.0.0.1"}]}, True),
    ],
)
def test_pod_enqueues_revision_only_by_fields_it_reads(status: Object, *, is_read: bool) -> None:
    expected = {REVISION} if is_read else set()
    assert cache_with().put(kinds.POD, a_pod(**status)) == expected
    assert cache_with((kinds.POD, a_pod())).put(kinds.POD, newer(a_pod(**status))) == expected
    going = stored(a_pod(**status), resourceVersion="8", deletionTimestamp=NOW)
    assert cache_with((kinds.POD, a_pod())).put(kinds.POD, going) == {REVISION}


@pytest.mark.parametrize(
    ("status", "is_read"),
    [
        ({"observedGeneration": 2, "updatedReplicas": 1, "unavailableReplicas": 1}, False),
        ({"conditions": [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]}, False),
        ({"conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}, True),
        ({"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}]}, True),
        ({"readyReplicas": 1}, True),
    ],
)
def test_deployment_enqueues_revision_only_by_fields_it_reads(status: Object, *, is_read: bool) -> None:
    before = {**a_deployment(a_revision()), "status": {}}
    cache = cache_with((kinds.DEPLOYMENT, before))
    assert cache.put(kinds.DEPLOYMENT, newer({**before, "status": status})) == ({REVISION} if is_read else set())


def test_scaled_deployment_enqueues_its_revision() -> None:
    before = a_deployment(a_revision())
    after = newer({**before, "spec": {**before["spec"], "replicas": 7}})
    assert cache_with((kinds.DEPLOYMENT, before)).put(kinds.DEPLOYMENT, after) == {REVISION}


def test_pod_without_revision_label_enqueues_nothing() -> None:
    assert cache_with().put(kinds.POD, stored(a_pod(), labels={})) == set()


def test_revision_enqueues_its_configuration_and_routes() -> None:
    cache = cache_with((kinds.ROUTE, a_route(traffic=BLUE)))
    assert cache.put(kinds.REVISION, a_revision()) == {REVISION, CONFIGURATION, ROUTE}


def test_replica_count_change_enqueues_revision_only() -> None:
    cache = cache_with((kinds.REVISION, a_revision()))
    assert cache.put(kinds.REVISION, newer(a_revision(), status={"actualReplicas": 3})) == {REVISION}


def test_learnt_annotation_change_enqueues_revision_only() -> None:
    revision = a_revision()
    cache = cache_with((kinds.ROUTE, a_route(traffic=BLUE)), (kinds.REVISION, revision))
    learnt = {**revision["metadata"].get("annotations", {}), LEARNT_ANNOTATION: "{}"}
    assert cache.put(kinds.REVISION, stored(revision, resourceVersion="9", annotations=learnt)) == {REVISION}


def test_retirement_of_revision_enqueues_owners_and_reserve_does_not() -> None:
    revision = a_revision()
    cache = cache_with((kinds.ROUTE, a_route(traffic=BLUE)), (kinds.REVISION, revision))
    asleep = newer(revision, spec={**revision["spec"], "servingState": "Reserve"})
    assert cache.put(kinds.REVISION, asleep) == {REVISION}
    retired = {**stored(revision, resourceVersion="9"), "spec": {**revision["spec"], "servingState": "Retired"}}
    assert cache.put(kinds.REVISION, retired) == {REVISION, CONFIGURATION, ROUTE}


def test_route_enqueues_revisions_added_to_or_removed_from_traffic() -> None:
    cache = cache_with((kinds.ROUTE, a_route(traffic=BLUE)))
    moved = newer(a_route(traffic=[{**BLUE[0], "revisionName": "hello-00002"}]))
    woken = cache.put(kinds.ROUTE, moved)
    assert {REVISION, (kinds.REVISION, "default", "hello-00002")} <= woken
    assert REVISION not in cache.put(kinds.ROUTE, newer(moved))


def test_route_enqueues_routes_with_same_host() -> None:
    cache = cache_with((kinds.ROUTE, a_route(traffic=BLUE)))
    assert ROUTE in cache.put(kinds.ROUTE, a_route("blue-hello"))
    assert ROUTE in cache.drop(kinds.ROUTE, ("default", "blue-hello"))


def test_route_pinned_to_revision_enqueues_newest_revision() -> None:
    newest = {**a_configuration(), "status": {"latestCreatedRevisionName": "hello-00002"}}
    cache = cache_with((kinds.CONFIGURATION, newest), (kinds.ROUTE, a_route()))
    pinned = newer(a_route(traffic=BLUE))
    assert (kinds.REVISION, "default", "hello-00002") in cache.put(kinds.ROUTE, pinned)


def test_later_claim_of_host_reports_its_holder() -> None:
    cache = cache_with((kinds.ROUTE, a_route(traffic=BLUE)), (kinds.ROUTE, a_route("blue-hello")))
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    assert "default/blue-hello" in condition_values(status, "IngressReady")[2]


def test_older_resource_version_is_ignored() -> None:
    cache = cache_with((kinds.SERVING_SERVICE, newer(a_service())))
    assert cache.put(kinds.SERVING_SERVICE, a_service()) == set()
    assert cache.get(kinds.SERVING_SERVICE, ("default", "hello")) == newer(a_service())


def test_recreated_object_is_accepted_with_older_version() -> None:
    cache = cache_with((kinds.SERVING_SERVICE, newer(a_service())))
    assert cache.put(kinds.SERVING_SERVICE, stored(a_service(), uid="another"))


def test_non_numeric_versions_are_accepted() -> None:
    cache = cache_with((kinds.SERVING_SERVICE, newer(a_service())))
    assert cache.put(kinds.SERVING_SERVICE, stored(a_service(), resourceVersion="opaque"))


def test_written_object_is_cached_unless_deleted() -> None:
    cache = cache_with()
    assert SERVICE in cache.put_written(kinds.SERVING_SERVICE, a_service())
    assert cache.put(kinds.SERVING_SERVICE, a_service()) == set()
    assert cache.put_written(kinds.SERVING_SERVICE, newer(a_service())) == {SERVICE}
    cache.drop(kinds.SERVING_SERVICE, ("default", "hello"))
    assert cache.put_written(kinds.SERVING_SERVICE, newer(a_service())) == set()
    assert cache.put_written(kinds.SERVING_SERVICE, stored(a_service(), uid="another"))


def test_memory_of_deleted_objects_is_bounded() -> None:
    cache, pod = cache_with(), a_pod(podIP="10.0.0.1")
    for number in range(5000):
        cache.put(kinds.POD, stored(pod, uid=f"pod-{number}"))
        cache.drop(kinds.POD, ("default", "pod"))
    assert cache.put_written(kinds.POD, stored(pod, uid="pod-4999")) == set()
    assert cache.put_written(kinds.POD, stored(pod, uid="pod-0")) == {REVISION}


def test_dropping_unknown_object_enqueues_nothing() -> None:
    assert cache_with().drop(kinds.SERVING_SERVICE, ("default", "hello")) == set()


def test_unknown_key_plans_no_writes() -> None:
    assert decide(cache_with(), SERVICE, now=NOW, now_s=NOW_S) == WritePlan()


def test_kind_without_reconciler_plans_no_writes() -> None:
    assert decide(cache_with((kinds.POD, a_pod())), (kinds.POD, "default", "pod"), now=NOW, now_s=NOW_S) == WritePlan()


def test_revision_status_reads_pods_while_none_is_ready() -> None:
    boom = {"name": "user-container", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
    revision = a_revision()
    cache = cache_with(
        (kinds.REVISION, revision),
        (kinds.DEPLOYMENT, a_deployment(revision)),
        (kinds.SERVICE, desired_private_service(revision)),
        (kinds.POD, a_pod(containerStatuses=[boom])),
    )
    status = written_status(decide(cache, REVISION, now=NOW, now_s=NOW_S), kinds.REVISION)
    assert condition_values(status, "Ready")[1] == "ExitCode1"
    cache.drop(kinds.POD, ("default", "pod"))
    status = written_status(decide(cache, REVISION, now=NOW, now_s=NOW_S), kinds.REVISION)
    assert condition_values(status, "Ready")[1] == "Deploying"


def test_image_digests_are_not_read_from_evicted_pod() -> None:
    revision = a_revision()
    name = revision["spec"]["containers"][0]["name"]
    pods = [
        a_pod(text, phase=phase, containerStatuses=[{"name": name, "imageID": f"r/a@sha256:{text}"}])
        for text, phase in (("a-evicted", "Failed"), ("b-runs", "Running"), ("c-runs", "Running"))
    ]
    cache = cache_with(
        (kinds.REVISION, revision),
        (kinds.DEPLOYMENT, a_deployment(revision, ready=2)),
        (kinds.SERVICE, desired_private_service(revision)),
        *((kinds.POD, pod) for pod in pods),
    )
    status = written_status(decide(cache, REVISION, now=NOW, now_s=NOW_S), kinds.REVISION)
    (container_status,) = status["containerStatuses"]
    assert container_status["imageDigest"] in {"r/a@sha256:b-runs", "r/a@sha256:c-runs"}


def test_superseded_revision_without_route_is_in_reserve() -> None:
    newest = {**a_configuration(), "status": {"latestCreatedRevisionName": "hello-00002"}}
    cache = cache_with((kinds.REVISION, a_revision()), (kinds.CONFIGURATION, newest))
    (labels,) = [
        write.patch["metadata"]["labels"]
        for write in decide(cache, REVISION, now=NOW, now_s=NOW_S).writes
        if hasattr(write, "patch") and "labels" in write.patch["metadata"]
    ]
    assert labels == {"serving.knative.dev/routingState": "reserve"}


def test_taken_revision_name_is_reported_by_service() -> None:
    named: dict[str, Any] = {"metadata": {"name": "hello-blue"}}
    conflicting = a_revision("hello", generation=1, spec={"containers": [{"image": "other"}]}, **named)
    configuration = a_configuration(generation=2, **named)
    cache = cache_with(
        (kinds.SERVING_SERVICE, a_service(**named)),
        (kinds.CONFIGURATION, configuration),
        (kinds.REVISION, conflicting),
    )
    status = written_status(decide(cache, SERVICE, now=NOW, now_s=NOW_S), kinds.SERVING_SERVICE)
    assert condition_values(status, "RoutesReady")[1] == "RevisionNameTaken"
    cache.drop(kinds.REVISION, ("default", "hello-blue"))
    status = written_status(decide(cache, SERVICE, now=NOW, now_s=NOW_S), kinds.SERVING_SERVICE)
    assert condition_values(status, "RoutesReady")[1] == "OutOfDate"


def test_configuration_status_reads_its_revisions() -> None:
    ready = stored(with_ready(a_revision(), "True"), annotations={BECAME_READY_ANNOTATION: NOW})
    cache = cache_with((kinds.CONFIGURATION, a_configuration()), (kinds.REVISION, ready))
    status = written_status(decide(cache, CONFIGURATION, now=NOW, now_s=NOW_S), kinds.CONFIGURATION)
    assert status["latestReadyRevisionName"] == "hello-00001"


def test_route_status_reads_its_targets() -> None:
    ready = with_ready(a_revision(), "True")
    cache = cache_with((kinds.ROUTE, a_route(traffic=BLUE)), (kinds.REVISION, ready))
    assert written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)["traffic"][0]["tag"] == "blue"


def test_keys_returns_all_objects_of_a_kind() -> None:
    assert cache_with((kinds.SERVING_SERVICE, a_service())).keys(kinds.SERVING_SERVICE) == [SERVICE]


def test_rejection_is_retained_until_spec_changes() -> None:
    cache = cache_with((kinds.CONFIGURATION, a_configuration()))
    assert cache.refuse(CONFIGURATION, "too many") == {CONFIGURATION}
    status = written_status(decide(cache, CONFIGURATION, now=NOW, now_s=NOW_S), kinds.CONFIGURATION)
    assert "too many" in condition_values(status, "Ready")[2]
    cache.put(kinds.CONFIGURATION, newer({**a_configuration(generation=2), "status": status}))
    status = written_status(decide(cache, CONFIGURATION, now=NOW, now_s=NOW_S), kinds.CONFIGURATION)
    assert condition_values(status, "Ready")[0] == "Unknown"


def test_rejection_of_unknown_object_is_ignored() -> None:
    assert cache_with().refuse(CONFIGURATION, "too many") == set()


def test_deletion_of_one_pod_leaves_the_other() -> None:
    revision = a_revision()
    boom = {"name": "user-container", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
    cache = cache_with(
        (kinds.REVISION, revision),
        (kinds.DEPLOYMENT, a_deployment(revision)),
        (kinds.POD, a_pod("gone")),
        (kinds.POD, a_pod("left", containerStatuses=[boom])),
    )
    cache.drop(kinds.POD, ("default", "gone"))
    status = written_status(decide(cache, REVISION, now=NOW, now_s=NOW_S), kinds.REVISION)
    assert condition_values(status, "Ready")[1] == "ExitCode1"


def test_changed_revision_label_enqueues_both_revisions() -> None:
    cache = cache_with((kinds.POD, a_pod()))
    moved = merged(newer(a_pod()), {"metadata": {"labels": {"serving.knative.dev/revision": "hello-00002"}}})
    assert cache.put(kinds.POD, moved) == {REVISION, (kinds.REVISION, "default", "hello-00002")}


def test_changed_settings_enqueue_all_objects_and_change_hosts() -> None:
    cache = cache_with(
        (kinds.SERVING_SERVICE, a_service()),
        (kinds.CONFIGURATION, a_configuration()),
        (kinds.ROUTE, a_route()),
        (kinds.REVISION, a_revision()),
        (kinds.POD, a_pod()),
    )
    settings = msgspec.structs.replace(SETTINGS, domain="apps.example.org")
    assert cache.reconfigure(settings, SCALING) == {SERVICE, CONFIGURATION, ROUTE, REVISION}
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    assert status["url"] == "http://hello.default.apps.example.org:8080"


def test_changed_queue_proxy_settings_reach_the_sidecar() -> None:
    proxy = QueueProxySettings(report_period_s=0.5)
    sidecar = Sidecar(
        settings=SidecarSettings(), image="i", stats_url="", secret_of=lambda _, uid: uid, token_of=lambda _, name: name
    )
    cache = ControllerCache(SETTINGS, SCALING, system_namespace="knative-serving", sidecar=sidecar)
    cache.reconfigure(SETTINGS, SCALING, proxy)
    cache.reconfigure(SETTINGS, SCALING)
    assert cache.sidecar is not None
    assert cache.sidecar.proxy == proxy


def test_changed_queue_proxy_image_reaches_the_sidecar() -> None:
    sidecar = Sidecar(
        settings=SidecarSettings(), image="i", stats_url="", secret_of=lambda _, uid: uid, token_of=lambda _, name: name
    )
    cache = ControllerCache(SETTINGS, SCALING, system_namespace="knative-serving", sidecar=sidecar)
    cache.reconfigure(msgspec.structs.replace(SETTINGS, sidecar=SidecarSettings(image="other")), SCALING)
    assert cache.sidecar is not None
    assert cache.sidecar.settings.image == "other"


@pytest.mark.parametrize(
    ("traffic", "sidecar", "state"),
    [
        (None, SIDECAR, ("active", "hello")),
        ([{"latestRevision": True, "percent": 100}, BLUE[0]], SIDECAR, ("active", "hello")),
        (BLUE, SIDECAR, ("pending", None)),
        (None, None, ("pending", None)),
    ],
)
def test_first_revision_on_cluster_is_created_active(
    traffic: list[Object] | None, sidecar: Sidecar | None, state: tuple[str, str | None]
) -> None:
    cache = cache_with((kinds.SERVING_SERVICE, a_service(traffic=traffic)), (kinds.CONFIGURATION, a_configuration()))
    cache.sidecar = sidecar
    (create,) = decide(cache, CONFIGURATION, now=NOW, now_s=NOW_S).writes
    assert isinstance(create, Create)
    labels, annotations = (create.body["metadata"][part] for part in ("labels", "annotations"))
    assert (labels[ROUTING_STATE_LABEL], annotations.get(ROUTES_ANNOTATION)) == state
    # Its state stays until the route has traffic.
    cache.put(kinds.REVISION, stored(create.body))
    cache.put(kinds.ROUTE, a_route(traffic=traffic))
    if sidecar is not None and state[1]:
        assert metadata_written(decide(cache, REVISION, now=NOW, now_s=NOW_S)) == []


def test_revision_of_configuration_without_service_is_pending() -> None:
    cache = a_cache((kinds.CONFIGURATION, stored(a_configuration(), ownerReferences=[])), with_owners=False)
    cache.sidecar = SIDECAR
    (create,) = decide(cache, CONFIGURATION, now=NOW, now_s=NOW_S).writes
    assert isinstance(create, Create)
    assert create.body["metadata"]["labels"][ROUTING_STATE_LABEL] == "pending"


def test_route_is_ready_once_all_activators_confirm_it() -> None:
    settings = msgspec.structs.replace(SETTINGS, activator_pages="127.0.0.1:6082,127.0.0.1:6083")
    ready = {**a_configuration(), "status": {"latestReadyRevisionName": "hello-00001"}}
    cache = a_cache((kinds.CONFIGURATION, ready), (kinds.ROUTE, a_route()), settings=settings)
    assert cache.activator_addresses() == activator_pages(cache) == ("127.0.0.1:6082", "127.0.0.1:6083")
    plan = decide(cache, ROUTE, now=NOW, now_s=NOW_S)
    assert condition_values(written_status(plan, kinds.ROUTE), "Ready")[:2] == ("Unknown", "Uninitialized")
    assert cache.confirm(("default", "hello"), plan.unconfirmed) == {ROUTE}
    after = decide(cache, ROUTE, now=NOW, now_s=NOW_S)
    assert (condition_values(written_status(after, kinds.ROUTE), "Ready")[0], after.unconfirmed) == ("True", "")
    cache.drop(kinds.ROUTE, ("default", "hello"))
    assert cache.confirm(("default", "hello"), plan.unconfirmed) == set()
    cache.put(kinds.ROUTE, stored(a_route(), uid="another"))
    assert decide(cache, ROUTE, now=NOW, now_s=NOW_S).unconfirmed


def test_route_without_activators_needs_no_confirmation() -> None:
    assert cache_with().confirmed_digest(("default", "hello")) is None


def written(fields: Object, version: str) -> Object:
    return stored(fields, resourceVersion=version)


def test_newer_list_drops_missing_objects_except_later_writes() -> None:
    cache = cache_with()
    cache.put_written(kinds.REVISION, written(a_revision(), "5"))
    cache.put_written(kinds.SERVING_SERVICE, written(a_service(), "9"))
    assert REVISION in cache.apply_list(kinds.REVISION, (), version="7")
    assert cache.get(kinds.REVISION, ("default", "hello-00001")) is None
    assert cache.apply_list(kinds.SERVING_SERVICE, (), version="7") == set()
    assert cache.get(kinds.SERVING_SERVICE, ("default", "hello")) is not None
    assert cache.apply_list(kinds.SERVING_SERVICE, [("default", "hello")], version="10") == set()
    assert SERVICE in cache.apply_list(kinds.SERVING_SERVICE, (), version="not a number")


def test_write_response_older_than_list_is_ignored() -> None:
    cache = cache_with()
    cache.apply_list(kinds.SERVING_SERVICE, (), version="7")
    assert cache.put_written(kinds.SERVING_SERVICE, written(a_service(), "6")) == set()
    assert SERVICE in cache.put_written(kinds.SERVING_SERVICE, written(a_service(), "8"))


def test_changed_verdict_enqueues_route_until_deletion() -> None:
    where = ("default", "hello")
    go = {"hello-00002": RolloutJudgement(verdict=RolloutVerdict.GO, why="20 responses")}
    more = {"hello-00002": RolloutJudgement(verdict=RolloutVerdict.GO, why="40 responses")}
    back = {"hello-00002": RolloutJudgement(verdict=RolloutVerdict.BACK, why="errors")}
    cache = a_cache()
    assert cache.judge(where, go) == set()
    cache.put(kinds.ROUTE, a_route())
    assert cache.judge(where, go) == {ROUTE}
    assert cache.judge(where, more) == set()
    assert cache.judged[where] == more
    assert cache.judge(where, back) == {ROUTE}
    cache.drop(kinds.ROUTE, where)
    assert where not in cache.judged


def test_holder_of_host_is_reported_to_other_namespaces() -> None:
    claim = {"metadata": {"name": "a.example.com"}, "spec": {"namespace": "shop"}}
    cache = cache_with((kinds.ROUTE, a_route()), (kinds.CLUSTER_DOMAIN_CLAIM, claim))
    assert holder_of(cache, "shop", "hello.default.svc.cluster.local") == "Route default/hello"
    assert holder_of(cache, "default", "hello.default.svc.cluster.local") is None
    assert holder_of(cache, "default", "a.example.com") == "namespace shop, by a ClusterDomainClaim"
    assert holder_of(cache, "shop", "a.example.com") is None
    assert holder_of(cache, "shop", "b.example.com") is None


def test_unschedulable_pod_is_no_failure_if_always_schedulable() -> None:
    revision, pod = a_revision(), a_pod(conditions=[{**UNBOUND, "message": "no node"}])
    objects = ((kinds.REVISION, revision), (kinds.DEPLOYMENT, a_deployment(revision)), (kinds.POD, pod))
    for is_waited_for, reasons in ((False, ["Unschedulable"]), (True, [])):
        settings = msgspec.structs.replace(SETTINGS, pod_is_always_schedulable=is_waited_for)
        plan = decide(a_cache(*objects, settings=settings), REVISION, now=NOW, now_s=NOW_S)
        assert [note.reason for note in plan.notes] == reasons


def test_revision_status_has_log_url_of_template() -> None:
    settings = msgspec.structs.replace(SETTINGS, revision_url_template="http://logs/?uid=${REVISION_UID}")
    shown = with_ready({**a_revision(), "status": {"logUrl": "http://before"}}, "True")
    objects = ((kinds.REVISION, shown), (kinds.DEPLOYMENT, a_deployment(shown, ready=1)))
    for known, log_url in ((settings, "http://logs/?uid=uid-of-revision-hello-00001"), (SETTINGS, None)):
        plan = decide(a_cache(*objects, settings=known), REVISION, now=NOW, now_s=NOW_S)
        assert written_status(plan, kinds.REVISION)["logUrl"] == log_url
