"""Policies by name: Knative's, the adaptive one, and those from packages and files.

A factory creates the policy of one revision. The daemon's main loads the classes of users
(``serving.net.aio.policyclasses``) and passes them to ``PolicyRegistry``.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.scaling.adaptive.advice import PreWarmBudget
from serving.core.scaling.adaptive.gaps import GapPrior
from serving.core.scaling.adaptive.policy import adaptive_policy
from serving.core.scaling.decision.guarded import (
    FindPolicy,
    GuardedPolicy,
    MissingPolicy,
    PolicyCaller,
    PolicyClass,
    run_unbounded,
)
from serving.core.scaling.decision.policy import RevisionPolicy
from serving.core.scaling.scaler.shadow import PolicyShadow
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, KPA_CLASS, AutoscalerSettings


class PolicyFactory(Protocol):
    """Creates the policy of a revision. All revisions of an autoscaler share ``prior`` and ``budget``."""

    def __call__(
        self,
        spec: ScalingSpec,
        settings: AutoscalerSettings,
        *,
        prior: GapPrior | None = None,
        budget: PreWarmBudget | None = None,
        explains: bool = True,
    ) -> RevisionPolicy:
        """Create the policy of a revision. If ``explains``, its advice includes figures for people."""


class PolicyRegistry:
    """The known policies."""

    __slots__ = ("_classes", "_find", "_run")

    def __init__(
        self,
        classes: Mapping[str, PolicyClass] | None = None,
        *,
        find: FindPolicy | None = None,
        run: PolicyCaller = run_unbounded,
    ) -> None:
        """``classes`` are the installed policies, by name; ``find`` returns other policies.

        ``run`` limits the time of each call of a user policy.
        """
        self._classes = dict(classes or {})
        self._find = find
        self._run = run

    @property
    def names(self) -> tuple[str, ...]:
        """All policy names, the built-in ones first."""
        return (KNATIVE_POLICY, ADAPTIVE_POLICY, *sorted(self._classes))

    def policy_of(
        self,
        spec: ScalingSpec,
        settings: AutoscalerSettings,
        *,
        prior: GapPrior | None = None,
        budget: PreWarmBudget | None = None,
        explains: bool = True,
    ) -> RevisionPolicy:
        """The policy named by ``spec.policy``.

        For an unknown name Knative's policy decides, and each advice has the reason.
        """
        if spec.policy == KNATIVE_POLICY:
            return RevisionPolicy()
        if spec.policy == ADAPTIVE_POLICY:
            return adaptive_policy(spec, settings, prior=prior, budget=budget, explains=explains)
        try:
            policy_class = self._classes.get(spec.policy)
            if policy_class is None and self._find is not None:
                policy_class = self._find(spec.policy)
        except InvalidValue as error:
            return MissingPolicy(f"policy {spec.policy} cannot be loaded: {error}")
        if policy_class is None:
            return MissingPolicy(f"there is no policy {spec.policy} here, only {', '.join(self.names)}")
        self._classes[spec.policy] = policy_class
        return GuardedPolicy(policy_class, spec.policy, run=self._run)

    def shadow_of(  # noqa: PLR0913 - what a shadow is made of
        self,
        spec: ScalingSpec,
        settings: AutoscalerSettings,
        *,
        present_scale: int,
        wall_offset_s: float,
        now_s: float,
        prior: GapPrior | None = None,
        budget: PreWarmBudget | None = None,
    ) -> PolicyShadow | None:
        """The policy to compare with; None if the revision's class has no policies.

        Knative's policy is compared with the adaptive one, any other policy with Knative's.
        """
        if spec.class_name != KPA_CLASS:
            return None
        # Knative's policy replaces an unknown one.
        name = KNATIVE_POLICY if spec.policy in self.names[1:] else ADAPTIVE_POLICY
        other = msgspec.structs.replace(spec, policy=name)
        policy = self.policy_of(other, settings, prior=prior, budget=budget, explains=False)
        return PolicyShadow(
            spec, settings, policy=policy, present_scale=present_scale, wall_offset_s=wall_offset_s, now_s=now_s
        )


BUILT_IN = PolicyRegistry()
"""The registry of built-in policies only."""
