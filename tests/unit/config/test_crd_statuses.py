"""The schema of each status, and of each view, has exactly the fields that are written."""

from collections.abc import Callable, Mapping

import msgspec
import pytest

from serving.controller.revisions.configuration import reconcile_configuration
from serving.controller.revisions.revision_status import RevisionChildren, StartScale, desired_status
from serving.controller.revisions.views import pod_autoscaler_view, serverless_service_view
from serving.controller.routes.domain_mapping import MappingContext, reconcile_domain_mapping
from serving.controller.routes.rollout import RouteTargets
from serving.controller.routes.route import RouteContext, reconcile_route
from serving.controller.routes.service import ServiceChildren, reconcile_service
from serving.controller.workloads.known import KnownWorkload
from serving.controller.workloads.status import WorkloadView, workload_status
from serving.core.model.objects import Object
from serving.core.scaling.policies.engine import Triggers
from serving.core.settings.triggers import TriggerSettings
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import (
    CLUSTER_DOMAIN_CLAIM,
    CONFIGURATION,
    DOMAIN_MAPPING,
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    KEDA_SCALED_OBJECT,
    NODE_GROUP,
    POD_AUTOSCALER,
    REVISION,
    ROUTE,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SERVERLESS_SERVICE,
    SERVING_SERVICE,
    Kind,
)
from serving.net.cluster.schedules import schedule_state
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.plan import (
    GroupLimit,
    GroupPlan,
    GroupRule,
    PostponedRemoval,
    RetentionReason,
    Untaint,
    Utilisation,
    WantedNodes,
)
from serving.nodes.nodegroup.records import CloudGroup
from serving.nodes.nodegroup.status import status_of
from tests.unit.config.crdfields import differences, fields_of_schema, fields_of_value
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SCALING,
    SETTINGS,
    a_configuration,
    a_deployment,
    a_pod,
    a_revision,
    a_route,
    a_service,
    stored,
    with_ready,
    written_status,
)
from tests.unit.core.scaling.policies.builders import pods
from tests.unit.core.scaling.policy_builders import ROOM_UP, policy, revision

# Schema fields that serving does not write, by path suffix, with the reason.
UNWRITTEN = {
    "status.annotations": "of Knative's status type; Knative's own controllers write none either",
    "address.name": "of Knative's Addressable, for event sources",
    "address.CACerts": "of Knative's Addressable, for event sources",
    "address.audience": "of Knative's Addressable, for event sources",
    "status.logUrl": "Knative's link to a log store; there is none",
    "traffic[].configurationName": "a status names revisions",
    "objectRef.namespace": "of Kubernetes' ObjectReference; the Deployment is in the view's namespace",
    "objectRef.uid": "of Kubernetes' ObjectReference",
    "objectRef.resourceVersion": "of Kubernetes' ObjectReference",
    "objectRef.fieldPath": "of Kubernetes' ObjectReference",
    "conditions[].severity": "only conditions on which Ready does not depend have one",
}
OF_VIEWS = {"status.observedGeneration": "a view has one generation: it is written, and never changed by users"}


def service() -> Object:
    children = ServiceChildren(configuration=seen(a_configuration(), configuration()), route=seen(a_route(), route()))
    return written_status(reconcile_service(a_service(), children, now=NOW), SERVING_SERVICE)


def seen(child: Object, status: Object) -> Object:
    return {**child, "status": {**status, **with_ready(child, "False", message="because")["status"]}}


def configuration() -> Object:
    known = {
        "hello-00001": with_ready(a_revision(), "True"),
        "hello-00002": with_ready(a_revision(generation=2), "False", message="m"),
    }
    plan = reconcile_configuration(a_configuration(generation=2), known, settings=SETTINGS, scaling=SCALING, now=NOW)
    return written_status(plan, CONFIGURATION)


def route() -> Object:
    request_count = a_route(traffic=[{"revisionName": "hello-00001", "percent": 100, "tag": "old"}])
    known = RouteTargets(configurations={}, revisions={"hello-00001": with_ready(a_revision(), "True")})
    plan = reconcile_route(request_count, known, RouteContext(lost={}), settings=SETTINGS, now=NOW, now_s=NOW_S)
    return written_status(plan, ROUTE)


def revision_status() -> Object:
    result = a_revision(spec={"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]})
    image = "r@sha256:1"
    pod = a_pod(
        containerStatuses=[{"name": "a", "imageID": image}], initContainerStatuses=[{"name": "i", "imageID": image}]
    )
    children = RevisionChildren(deployment=a_deployment(result), pods=[pod])
    return desired_status(result, children, StartScale(start_count=1, min_count=0, progress_deadline_s=1.0), now=NOW)


def mapping() -> Object:
    ref = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"}
    kind = {"apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping"}
    result = stored({**kind, "metadata": {"name": "a.example.com"}, "spec": {"ref": ref}})
    claim = {"metadata": {"name": "a.example.com"}, "spec": {"namespace": "default"}}
    plan = reconcile_domain_mapping(result, MappingContext(claim=claim), settings=SETTINGS, now=NOW)
    return written_status(plan, DOMAIN_MAPPING)


def pod_autoscaler() -> Object:
    result = with_ready(a_revision(), "True")
    return pod_autoscaler_view(result, a_deployment(result), (), before=None, now=NOW)


def serverless_service() -> Object:
    result = with_ready(a_revision(), "True")
    return serverless_service_view(result, a_deployment(result), (), before=None, now=NOW)


def node_group() -> Object:
    plan = GroupPlan(
        requested_delta=-1,
        decided_by=GroupRule.TAINT_LOWER,
        wanted=(WantedNodes(rule=GroupRule.TAINT_LOWER, delta=-1),),
        withheld=(Untaint(node_name="a"),),
        limits=(GroupLimit.MIN_NODES,),
        kept_nodes=(PostponedRemoval(node_name="a", reason=RetentionReason.PODS),),
        usage=Utilisation(cpu_percent=1.0, memory_percent=1.0),
    )
    cloud = CloudGroup(target_size=1, min_size=0, max_size=1)
    return status_of(None, plan=plan, state=NodeGroupState(), cloud=cloud, done=["a"], problems=["b"], stamp=NOW)


def scaling_policy() -> Object:
    triggers = Triggers(TriggerSettings(), requests=lambda _: {}, on_change=lambda _: None, state_at=schedule_state)
    always = {"start": "0 0 1 1 *", "end": "59 23 31 12 *", "min": 1}
    scaling_policy_view = policy(up=ROOM_UP, schedules=[always])
    triggers.set_policy(scaling_policy_view)
    triggers.proposals(revision(), lambda: pods(occupied=9), present_scale=9, now_s=0.0, wall_offset_s=NOW_S)
    status = triggers.status(scaling_policy_view.key, now_s=0.0, wall_offset_s=NOW_S, stamp=str)
    assert status is not None
    return status


def scaled_workload() -> Object:
    kind = {"apiVersion": "serving.dev/v1alpha1", "kind": "ScaledWorkload", "metadata": {"name": "shop"}}
    cold_start = {"fallback": {"name": "maintenance"}}
    result = stored(
        {**kind, "spec": {"target": {"name": "shop"}, "service": {"name": "shop"}, "coldStart": cold_start}}
    )
    labels = {"app": "shop"}
    target = {"spec": {"replicas": 0, "template": {"metadata": {"labels": labels}}}}
    view = WorkloadView(own=KnownWorkload.of(result))
    service: Object = {
        "spec": {"selector": labels, "ports": [{"name": "http", "port": 80}], "sessionAffinity": "ClientIP"}
    }
    whole = msgspec.structs.replace(view, target=target, service=service, fallback=service)
    before = {**result, "status": workload_status(result, view, settings=SETTINGS, scaling=SCALING, now=NOW)}
    return workload_status(before, whole, settings=SETTINGS, scaling=SCALING, now=NOW)


STATUSES: Mapping[Kind, Callable[[], Object]] = {
    SERVING_SERVICE: service,
    CONFIGURATION: configuration,
    ROUTE: route,
    REVISION: revision_status,
    DOMAIN_MAPPING: mapping,
    NODE_GROUP: node_group,
    SCALING_POLICY: scaling_policy,
    SCALED_WORKLOAD: scaled_workload,
    POD_AUTOSCALER: lambda: pod_autoscaler()["status"],
    SERVERLESS_SERVICE: lambda: serverless_service()["status"],
}
VIEWS: Mapping[Kind, Callable[[], Object]] = {POD_AUTOSCALER: pod_autoscaler, SERVERLESS_SERVICE: serverless_service}


def test_each_kind_has_a_status_writer() -> None:
    """A ClusterDomainClaim has no status; ``controller/keda/test_reconcile.py`` checks KEDA's kinds."""
    keda = {HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, KEDA_SCALED_OBJECT}
    assert set(crds()) == {*STATUSES, CLUSTER_DOMAIN_CLAIM, *keda}


def both_sides(kind: Kind, part: str, value: Object) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return fields_of_schema(crds()[kind].schema["properties"][part], part), fields_of_value(value, part)


@pytest.mark.parametrize("kind", STATUSES, ids=lambda kind: kind.resource)
def test_status_schema_has_the_written_fields(kind: Kind) -> None:
    exceptions = UNWRITTEN | (OF_VIEWS if kind in VIEWS else {})
    schema, written = both_sides(kind, "status", STATUSES[kind]())
    assert differences(schema, written, record_name="what is written", exceptions=exceptions) == []


@pytest.mark.parametrize("kind", VIEWS, ids=lambda kind: kind.resource)
def test_view_schema_has_the_written_fields(kind: Kind) -> None:
    schema, written = both_sides(kind, "spec", VIEWS[kind]()["spec"])
    assert differences(schema, written, record_name="the view", exceptions=UNWRITTEN) == []


def test_every_unwritten_field_exception_is_needed() -> None:
    sides = [
        *(both_sides(kind, "status", make()) for kind, make in STATUSES.items()),
        *(both_sides(kind, "spec", make()["spec"]) for kind, make in VIEWS.items()),
    ]
    remaining = {path for schema, written in sides for path in schema.keys() - written.keys()}
    assert [suffix for suffix in (*UNWRITTEN, *OF_VIEWS) if not any(path.endswith(suffix) for path in remaining)] == []
