"""Policies and revisions for tests of triggers."""

from serving.core.model.knative import ServingState
from serving.core.scaling.policies.index import ScalingPolicyView, policy_of
from serving.core.scaling.resolve import resolve
from serving.core.scaling.revision import ScaledRevision
from serving.core.settings.annotations import read_annotations
from serving.core.settings.autoscaler import KPA_CLASS, AutoscalerSettings
from serving.net.cluster.schedules import schedule_problems

Json = dict[str, object]
_SETTINGS = AutoscalerSettings()
ROOM_UP: Json = {"triggers": [{"type": "occupancy", "usagePercent": 70, "timeSeconds": 10}], "cooldownSeconds": 60}
CPU_UP: Json = {"triggers": [{"type": "cpu", "usagePercent": 50, "timeSeconds": 10}], "cooldownSeconds": 60}


def revision(
    name: str = "hello-00001",
    *,
    uid: str = "r1",
    service: str = "hello",
    reachable: bool = True,
    state: ServingState = ServingState.ACTIVE,
) -> ScaledRevision:
    """A revision of a Service."""
    scaling = read_annotations({}, _SETTINGS).scaling
    return ScaledRevision(
        key=("default", name),
        uid=uid,
        resource_version="1",
        serving_state=state,
        class_name=KPA_CLASS,
        container_concurrency=10,
        was_ready=True,
        spec=resolve(_SETTINGS, scaling, container_concurrency=10, reachable=reachable),
        configuration=service,
        service=service,
    )


def manifest(
    name: str = "p",
    *,
    kind: str = "Service",
    target: str = "hello",
    created: str = "2026-01-01T00:00:00Z",
    status: Json | None = None,
    **spec: object,
) -> Json:
    """A ScalingPolicy as the API has it."""
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}", "creationTimestamp": created}
    whole = {"targetRef": {"kind": kind, "name": target}, **spec}
    return {"metadata": {**metadata, "generation": 1}, "spec": whole, "status": status or {}}


def policy(name: str = "p", **fields: object) -> ScalingPolicyView:
    """A policy as in the autoscaler; ``fields`` are those of ``manifest``."""
    scaling_policy_view = policy_of(manifest(name, **fields), schedule_problems)  # type: ignore[arg-type] # the fields of manifest
    assert scaling_policy_view is not None
    return scaling_policy_view
