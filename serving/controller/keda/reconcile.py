"""Plans the ScaledWorkload of a KEDA route, and the conditions of the route.

Input: the route, its conversion, and the ScaledWorkload of its name if there is one. Output: writes. The route owns the
ScaledWorkload, which is deleted with the route. The condition ``Ready`` repeats that of the ScaledWorkload.
``Converted`` names the fields without effect.
"""

from collections.abc import Iterator
from typing import Any

from serving.controller.keda.conversion import HTTP_SCALED_OBJECT, Conversion
from serving.controller.values.conditions import Condition, false_condition, updated_conditions
from serving.controller.values.writes import WritePlan, patch_of, status_patch
from serving.core.model.knative import CONDITION_READY, ConditionStatus
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    generation_of,
    is_being_deleted,
    is_controlled_by,
    nested,
    owner_reference,
)
from serving.core.model.scaledworkload import spec_patch
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Write

_CONVERTED = "Converted"
# Fields of metav1.Condition.
_MESSAGE_MAX = 32768


def reconcile_keda_route(
    kind: Kind, route: Object, conversion: Conversion, *, workload: Object | None, now: str, refusal: str = ""
) -> WritePlan:
    """The writes for a route; none while it is being deleted.

    ``refusal`` is why the server refuses its ScaledWorkload.
    """
    if is_being_deleted(route):
        return WritePlan()
    is_foreign = workload is not None and not is_controlled_by(workload, route)
    is_unusable = is_foreign or conversion.spec is None or bool(refusal)
    writes = () if is_unusable else tuple(_writes(route, conversion, workload))
    conditions = [_converted(conversion), _ready(conversion, workload, is_foreign=is_foreign, refusal=refusal)]
    before = nested(route, "status") or {}
    stamped = updated_conditions(conditions, before=map(_unnumbered, before.get("conditions") or ()), now=now)
    status = {
        **before,
        **(_targets(conversion) if conversion.kind == HTTP_SCALED_OBJECT else {}),
        "conditions": [{**condition, "observedGeneration": generation_of(route)} for condition in stamped],
    }
    return WritePlan(writes=(*writes, *status_patch(kind, route, status)))


def _unnumbered(condition: Object) -> Object:
    return {key: value for key, value in condition.items() if key != "observedGeneration"}


def _writes(route: Object, conversion: Conversion, workload: Object | None) -> Iterator[Write]:
    wanted = conversion.workload()
    if workload is None:
        owned = {**wanted["metadata"], "ownerReferences": [owner_reference(route)]}
        yield Create(kind=kinds.SCALED_WORKLOAD, body={**wanted, "metadata": owned})
        return
    changes: dict[str, Any] = {}
    if conversion.spec is not None and (spec := spec_patch(workload, conversion.spec)):
        changes["spec"] = spec
    annotations = annotations_of(workload)
    if conversion.annotations.items() - annotations.items():
        changes["metadata"] = {"annotations": dict(conversion.annotations)}
    yield from patch_of(kinds.SCALED_WORKLOAD, workload, changes)


def _converted(conversion: Conversion) -> Condition:
    if not conversion.notes:
        return Condition(
            type=_CONVERTED, status=ConditionStatus.TRUE, reason="EveryFieldActs", message="every field acts"
        )
    message = "; ".join(conversion.notes)[:_MESSAGE_MAX]
    return false_condition(_CONVERTED, "FieldsWithoutEffect", message)


def _ready(conversion: Conversion, workload: Object | None, *, is_foreign: bool, refusal: str) -> Condition:
    if is_foreign:
        message = f'a ScaledWorkload "{conversion.name}" exists that this {conversion.kind} does not own'
        return false_condition(CONDITION_READY, "NotOwned", message)
    if conversion.problems or refusal:
        message = ("; ".join(map(str, conversion.problems)) or refusal)[:_MESSAGE_MAX]
        return false_condition(CONDITION_READY, "NotConverted", message)
    ready = condition_of(workload, CONDITION_READY)
    status = ConditionStatus(ready.get("status", ConditionStatus.UNKNOWN))
    reason = ready.get("reason") or ("WorkloadReady" if status is ConditionStatus.TRUE else "WorkloadNotReconciled")
    message = ready.get("message") or f'ScaledWorkload "{conversion.name}" has Ready {status.value}'
    return Condition(type=CONDITION_READY, status=status, reason=reason, message=message)


def _targets(conversion: Conversion) -> Object:
    """The status fields of KEDA that name the workload, and the Service with its port."""
    if conversion.spec is None:
        return {}
    target, service = conversion.spec.target, conversion.spec.service
    return {
        "targetWorkload": f"{target.api_version}/{target.kind}/{target.name}",
        "targetService": f"{service.name}:{service.port}",
    }
