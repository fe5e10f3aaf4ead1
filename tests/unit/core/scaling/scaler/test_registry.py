"""Policies by name."""

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.scaling.adaptive.policy import AdaptivePolicy
from serving.core.scaling.decision.guarded import GuardedPolicy, MissingPolicy, PolicyClass
from serving.core.scaling.decision.policy import NEUTRAL, Advice, PolicyView, SecondOfLoad
from serving.core.scaling.scaler.registry import BUILT_IN, PolicyRegistry
from serving.core.settings.autoscaler import CLASSIC_CLASS, AutoscalerSettings
from tests.unit.core.scaling.decision.test_policy import view_with
from tests.unit.core.scaling.kpa_builders import spec_with

SETTINGS = AutoscalerSettings()


class Fixed:
    """A policy of a user."""

    counts_waiting = True

    def observe(self, second: SecondOfLoad) -> None: ...

    def propose(self, view: PolicyView) -> Advice:
        del view
        return NEUTRAL


def test_names_are_built_in_and_added_policies() -> None:
    assert BUILT_IN.names == ("knative", "adaptive")
    assert PolicyRegistry({"fixed": Fixed}).names == ("knative", "adaptive", "fixed")


def test_policy_of_returns_policy_by_name() -> None:
    registry = PolicyRegistry({"fixed": Fixed})
    policies = [
        registry.policy_of(spec_with(policy=name), SETTINGS) for name in ("knative", "adaptive", "fixed", "unknown")
    ]
    assert [policy.name for policy in policies] == ["knative", "adaptive", "fixed", "knative"]
    assert isinstance(policies[1], AdaptivePolicy)
    assert isinstance(policies[2], GuardedPolicy)
    assert policies[2].counts_waiting


def test_shadow_is_adaptive_for_knative_policy_and_knative_for_others() -> None:
    registry = PolicyRegistry({"fixed": Fixed})
    names = []
    for name in ("knative", "adaptive", "fixed", "unknown"):
        shadow = registry.shadow_of(spec_with(policy=name), SETTINGS, present_scale=0, wall_offset_s=0.0, now_s=0.0)
        assert shadow is not None
        names.append(shadow.policy.name)
    assert names == ["adaptive", "knative", "knative", "adaptive"]


def test_classic_class_has_no_shadow() -> None:
    spec = msgspec.structs.replace(spec_with(), class_name=CLASSIC_CLASS)
    assert BUILT_IN.shadow_of(spec, SETTINGS, present_scale=0, wall_offset_s=0.0, now_s=0.0) is None


def test_unknown_policy_name_falls_back_to_knative_with_failure() -> None:
    policy = PolicyRegistry({"fixed": Fixed}).policy_of(spec_with(policy="fixd"), SETTINGS)
    assert isinstance(policy, MissingPolicy)
    assert policy.failure == "there is no policy fixd here, only knative, adaptive, fixed"
    assert policy.propose(view_with()) == Advice(failure=policy.failure)


def test_policy_class_is_searched_once_and_its_error_is_reported() -> None:
    names: list[str] = []

    def find(name: str) -> PolicyClass:
        names.append(name)
        if name == "broken":
            raise InvalidValue(text="broken.py:X", expected="loadable: SyntaxError: invalid syntax")
        return Fixed

    registry = PolicyRegistry(find=find)
    policies = [registry.policy_of(spec_with(policy=name), SETTINGS) for name in ("mine", "mine", "broken")]
    assert [type(policy) for policy in policies] == [GuardedPolicy, GuardedPolicy, MissingPolicy]
    assert names == ["mine", "broken"]
    assert policies[2].failure == (
        "policy broken cannot be loaded: 'broken.py:X' is not loadable: SyntaxError: invalid syntax"
    )
