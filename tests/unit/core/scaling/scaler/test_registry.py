"""Policies by name."""

import msgspec

from serving.core.scaling.adaptive.policy import AdaptivePolicy
from serving.core.scaling.decision.policy import NEUTRAL, Advice, GuardedPolicy, PolicyView, SecondOfLoad
from serving.core.scaling.scaler.registry import BUILT_IN, PolicyRegistry
from serving.core.settings.autoscaler import CLASSIC_CLASS, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with

SETTINGS = AutoscalerSettings()


class Fixed:
    """A policy of a user."""

    counts_waiting = True

    def observe(self, second: SecondOfLoad) -> None: ...

    def propose(self, view: PolicyView) -> Advice:
        del view
        return NEUTRAL


def test_names_are_the_built_in_ones_and_those_that_are_added() -> None:
    assert BUILT_IN.names == ("knative", "adaptive")
    assert PolicyRegistry({"fixed": Fixed}).names == ("knative", "adaptive", "fixed")


def test_a_name_makes_its_policy() -> None:
    registry = PolicyRegistry({"fixed": Fixed})
    made = [
        registry.policy_of(spec_with(policy=name), SETTINGS) for name in ("knative", "adaptive", "fixed", "unknown")
    ]
    assert [policy.name for policy in made] == ["knative", "adaptive", "fixed", "knative"]
    assert isinstance(made[1], AdaptivePolicy)
    assert isinstance(made[2], GuardedPolicy)
    assert made[2].counts_waiting


def test_the_shadow_is_the_adaptive_policy_beside_knatives_and_knatives_beside_any_other() -> None:
    registry = PolicyRegistry({"fixed": Fixed})
    names = []
    for name in ("knative", "adaptive", "fixed"):
        shadow = registry.shadow_of(spec_with(policy=name), SETTINGS, present_scale=0, wall_offset_s=0.0, now_s=0.0)
        assert shadow is not None
        names.append(shadow.policy.name)
    assert names == ["adaptive", "knative", "knative"]


def test_classes_without_a_policy_have_no_shadow() -> None:
    spec = msgspec.structs.replace(spec_with(), class_name=CLASSIC_CLASS)
    assert BUILT_IN.shadow_of(spec, SETTINGS, present_scale=0, wall_offset_s=0.0, now_s=0.0) is None
