"""Policies by name: Knative's, the adaptive one, and those that packages and files add.

A factory makes the policy of one revision. Names of packages come from the entry-point group ``serving.policies``; the shell that
starts the process reads them (``serving.net.aio.plugins``) and gives them to ``PolicyRegistry``.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from serving.core.scaling.adaptive.advice import PreWarmBudget
from serving.core.scaling.adaptive.gaps import GapPrior
from serving.core.scaling.adaptive.policy import adaptive_policy
from serving.core.scaling.decision.policy import GuardedPolicy, Policy, RevisionPolicy
from serving.core.scaling.scaler.shadow import PolicyShadow
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, KPA_CLASS, AutoscalerSettings

PolicyClass = Callable[[], Policy]
"""Makes a policy of a package or a file for one revision."""


class PolicyFactory(Protocol):
    """Makes the policy of a revision. ``prior`` and ``budget`` are shared by all revisions of an autoscaler."""

    def __call__(
        self,
        spec: ScalingSpec,
        settings: AutoscalerSettings,
        *,
        prior: GapPrior | None = None,
        budget: PreWarmBudget | None = None,
        explains: bool = True,
    ) -> RevisionPolicy:
        """The policy of the revision; ``explains`` adds the figures for people to its advice."""


class PolicyRegistry:
    """The known policies."""

    __slots__ = ("_classes",)

    def __init__(self, classes: Mapping[str, PolicyClass] | None = None) -> None:
        self._classes = dict(classes or {})

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the built-in ones first."""
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
        """The policy named by ``spec.policy``; Knative's for a name that is not in the registry."""
        if spec.policy == ADAPTIVE_POLICY:
            return adaptive_policy(spec, settings, prior=prior, budget=budget, explains=explains)
        policy_class = self._classes.get(spec.policy)
        return RevisionPolicy() if policy_class is None else GuardedPolicy(policy_class(), spec.policy)

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
        """The adaptive policy beside Knative's, and Knative's beside any other; None for classes without a policy."""
        if spec.class_name != KPA_CLASS:
            return None
        name = ADAPTIVE_POLICY if spec.policy == KNATIVE_POLICY else KNATIVE_POLICY
        other = msgspec.structs.replace(spec, policy=name)
        policy = self.policy_of(other, settings, prior=prior, budget=budget, explains=False)
        return PolicyShadow(
            spec, settings, policy=policy, present_scale=present_scale, wall_offset_s=wall_offset_s, now_s=now_s
        )


BUILT_IN = PolicyRegistry()
"""The policies of this project alone."""
