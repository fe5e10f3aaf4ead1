"""Rules that CEL cannot state: they need the object's namespace, or more than one expression can say.

All other rules stand as CEL in ``config/crd/*.yaml``, and ``validations.py`` evaluates them. A real API server knows only
those; there the controllers report what these rules find as a condition. Pure.
"""

from collections.abc import Iterator

import msgspec

from serving.cluster.kinds import DOMAIN_MAPPING, SCALING_POLICY, Kind
from serving.cluster.schedules import schedule_problems
from serving.model.errors import Problem
from serving.model.objects import Object, namespace_of, nested
from serving.scaling.policies.scalingpolicy import ScalingPolicySpec, check_scaling_policy
from serving.scaling.policies.triggertypes import REGISTRY


def own_problems(kind: Kind, whole: Object) -> Iterator[Problem]:
    """Yield what is wrong with an object beyond its schema and its CEL rules."""
    if kind == SCALING_POLICY:
        yield from _policy_problems(whole.get("spec") or {})
    if kind == DOMAIN_MAPPING:
        yield from _namespace_problems(whole)


def _policy_problems(spec: object) -> Iterator[Problem]:
    """Everything that the autoscaler would reject: CEL does not know the trigger types, for one."""
    try:
        policy = msgspec.convert(spec, type=ScalingPolicySpec)
    except msgspec.ValidationError as error:
        yield Problem(where="spec", what=f"Invalid value: {error}", expected="a ScalingPolicy's spec")
        return
    yield from check_scaling_policy(policy, known_types=REGISTRY.keys())
    yield from schedule_problems(policy)


def _namespace_problems(mapping: Object) -> Iterator[Problem]:
    own, given = namespace_of(mapping), nested(mapping, "spec", "ref", "namespace")
    if given and own and given != own:
        what = f'Invalid value: mismatched namespaces: parent namespace: "{own}" does not match ref: "{given}"'
        yield Problem(where="spec.ref.namespace", what=what, expected=f"{own}, or nothing")
