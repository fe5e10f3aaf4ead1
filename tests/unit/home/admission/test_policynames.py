import re
from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.admission.policynames import with_known_policy
from serving.net.cluster.kinds import CONFIGURATION, POD, REVISION, SCALED_WORKLOAD, SERVING_SERVICE, Kind

KNOWN = ["knative", "adaptive", "mine"]


def with_policy(kind: Kind, name: str, **metadata: object) -> dict[str, Any]:
    annotated = {"metadata": {"name": "hello", "annotations": {"autoscaling.serving.dev/policy": name}, **metadata}}
    if kind == REVISION:
        return annotated
    spec: dict[str, Any] = {"scaling": {"policy": name}} if kind == SCALED_WORKLOAD else {"template": annotated}
    return {"metadata": {"name": "hello", **metadata}, "spec": spec}


@pytest.mark.parametrize("kind", [SERVING_SERVICE, CONFIGURATION, REVISION, SCALED_WORKLOAD])
def test_unknown_scaling_policy_is_rejected_with_known_names(kind: Kind) -> None:
    where = "spec.scaling.policy" if kind == SCALED_WORKLOAD else "annotation autoscaling.serving.dev/policy"
    text = (
        f'"hello" is invalid: {where}: Invalid value: "nope": no such policy; expected one of knative, adaptive, mine'
    )
    with pytest.raises(Invalid, match=re.escape(text)):
        with_known_policy(kind, with_policy(kind, "nope"), None, policies=lambda: KNOWN)
    mine = with_policy(kind, "mine")
    assert with_known_policy(kind, mine, None, policies=lambda: KNOWN) is mine
    # A policy that no longer exists does not prevent other changes.
    assert with_known_policy(kind, mine, mine, policies=lambda: ["knative"]) is mine


def test_policies_of_derived_and_other_objects_are_not_checked() -> None:
    derived = with_policy(REVISION, "nope", ownerReferences=[{"name": "hello"}])
    assert with_known_policy(REVISION, derived, None, policies=lambda: KNOWN) is derived
    other = with_policy(POD, "nope")
    assert with_known_policy(POD, other, None, policies=lambda: KNOWN) is other
