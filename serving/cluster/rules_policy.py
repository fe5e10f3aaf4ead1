"""Rules on a ScalingPolicy: a few in CEL, so that a real cluster refuses the worst; all of them in Python.

``check_scaling_policy`` of the model knows more than CEL can say, so the last rule asks it; what the rules before it have
said about the same field is not said again.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from serving.cluster.kinds import SCALING_POLICY, Kind
from serving.model.errors import Problem
from serving.model.scalingpolicy import (
    LIMIT_PERCENT_DEFAULT,
    ScalingPolicySpec,
    TargetRef,
    check_scaling_policy,
    target_problems,
)
from serving.scaling.triggertypes.policies import REGISTRY

__all__ = ["POLICY_RULES"]

# JSON values come as they are.
# ruff: noqa: ANN401


def _min_below_max(self: Any, _: Any, path: str) -> Iterator[Problem]:
    least, most = self.get("min", 0), self.get("max", 0)
    if most != 0 and least > most:
        what, expected = f"{least} is above spec.max, {most}", f"at most {most}, or spec.max 0"
        yield Problem(where=f"{path}.min", what=what, expected=expected)


def _up_limit_above_usage(self: Any, _: Any, path: str) -> Iterator[Problem]:
    limit, usage = self.get("limitPercent", LIMIT_PERCENT_DEFAULT), self["usagePercent"]
    if limit < usage:
        what = f"{limit} is below usagePercent, {usage}: it would act on a usage that is right"
        yield Problem(where=f"{path}.limitPercent", what=what, expected=f"at least {usage}")


def _down_has_no_limit(self: Any, _: Any, path: str) -> Iterator[Problem]:
    if "limitPercent" in self:
        what, expected = f"{self['limitPercent']} would not be read", "no limit: only up triggers have one"
        yield Problem(where=f"{path}.limitPercent", what=what, expected=expected)


def _target_can_be_scaled(self: Any, _: Any, path: str) -> Iterator[Problem]:
    # What is left out was filled in, or was refused by the schema.
    target = TargetRef(kind=self["kind"], name=self["name"], api_version=self["apiVersion"])
    yield from target_problems(target, path)


def _is_usable(self: Any, _: Any, path: str) -> Iterator[Problem]:
    try:
        spec = msgspec.convert(self, type=ScalingPolicySpec)
    except msgspec.ValidationError as error:
        yield Problem(where=path, what=str(error), expected="a ScalingPolicy's spec")
        return
    yield from check_scaling_policy(spec, known_types=REGISTRY.keys())


_Row = tuple[str, tuple[Kind, ...], str, str, str, Callable[[Any, Any, str], Iterator[Problem]]]
_POLICY = (SCALING_POLICY,)
_LIMITED = f"(has(self.limitPercent) ? self.limitPercent : {LIMIT_PERCENT_DEFAULT}) >= self.usagePercent"
_NAMED = (
    "self.apiVersion == 'serving.knative.dev/v1' && self.kind in ['Service', 'Configuration', 'Revision']"
    " && self.name != ''"
)

POLICY_RULES: tuple[_Row, ...] = (
    (
        "min-below-max",
        _POLICY,
        "spec",
        "!has(self.max) || self.max == 0 || !has(self.min) || self.min <= self.max",
        "min must be at most max",
        _min_below_max,
    ),
    (
        "up-limit-above-usage",
        _POLICY,
        "spec.up.triggers[*]",
        _LIMITED,
        "limitPercent must be at least usagePercent",
        _up_limit_above_usage,
    ),
    (
        "down-has-no-limit",
        _POLICY,
        "spec.down.triggers[*]",
        "!has(self.limitPercent)",
        "only up triggers have a limitPercent",
        _down_has_no_limit,
    ),
    (
        "target-can-be-scaled",
        _POLICY,
        "spec.targetRef",
        _NAMED,
        "targetRef must name a Service, Configuration or Revision of serving.knative.dev/v1",
        _target_can_be_scaled,
    ),
    ("policy-is-usable", _POLICY, "spec", "", "the policy cannot be used", _is_usable),
)
