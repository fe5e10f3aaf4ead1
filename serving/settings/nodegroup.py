"""Settings of one node group, in Escalator's keys, and what is ours beside them.

One record a group; ``serving/settings/nodegroup_options.py`` reads it from what people write. Thresholds, rates and
grace periods have no default: they depend on the machines. Source of keys and ranges: atlassian/escalator 043bb1b,
docs/configuration/nodegroup.md and pkg/controller/node_group.go, unless a field says otherwise.
"""

from collections.abc import Iterator
from typing import Annotated

from serving.settings.knob import COUNT, DURATION, FLAG, TEXT, Knob
from serving.settings.nodegroup_quirks import NodeGroupQuirks
from serving.settings.record import Clash, SettingsRecord

TAINT_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")


class NodeGroupSettings(SettingsRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All knobs of a node group. Times are in seconds; utilisation stays in percent, as people write it."""

    name: Annotated[str, Knob(key="name", unit=TEXT)]
    """Name of the group. The group named ``default`` takes the pods that ask for no nodes in particular. Not empty."""

    label_key: Annotated[str, Knob(key="label_key", unit=TEXT)]
    """Key of the label that all nodes of the group carry. Not empty."""

    label_value: Annotated[str, Knob(key="label_value", unit=TEXT)]
    """Value of that label. Not empty."""

    cloud_provider_group_name: Annotated[str, Knob(key="cloud_provider_group_name", unit=TEXT)]
    """The cloud's name for the group of machines, such as that of an autoscaling group. Not empty."""

    taint_lower_capacity_threshold_percent: Annotated[
        int, Knob(key="taint_lower_capacity_threshold_percent", unit=COUNT, low=1)
    ]
    """Utilisation below which nodes are tainted fast, in percent. Range: from 1, below the upper one. No default."""

    taint_upper_capacity_threshold_percent: Annotated[
        int, Knob(key="taint_upper_capacity_threshold_percent", unit=COUNT, low=1)
    ]
    """Utilisation below which nodes are tainted slowly, in percent. Range: from 1, below the scale-up threshold. No
    default."""

    scale_up_threshold_percent: Annotated[int, Knob(key="scale_up_threshold_percent", unit=COUNT, low=1)]
    """Utilisation above which nodes are added until it is reached again, in percent; may exceed 100. No default."""

    slow_node_removal_rate: Annotated[int, Knob(key="slow_node_removal_rate", unit=COUNT, low=0)]
    """Nodes to taint in a pass between the two lower thresholds. Range: from 0, which is none, to the fast rate. No
    default."""

    fast_node_removal_rate: Annotated[int, Knob(key="fast_node_removal_rate", unit=COUNT, low=0)]
    """Nodes to taint in a pass below both lower thresholds. Range: from 0, which is none. No default."""

    soft_delete_grace_period_s: Annotated[float, Knob(key="soft_delete_grace_period", unit=DURATION, above=0)]
    """Time from the taint after which an empty node is deleted, in seconds. Range: above 0. No default."""

    hard_delete_grace_period_s: Annotated[float, Knob(key="hard_delete_grace_period", unit=DURATION, above=0)]
    """Time from the taint after which the pods that are still on a node must leave, in seconds. Range: above the soft
    one. No default."""

    scale_up_cool_down_period_s: Annotated[float, Knob(key="scale_up_cool_down_period", unit=DURATION, above=0)]
    """Time from asking the cloud for nodes during which no more are asked for, in seconds: about what a machine needs
    to become a node. Range: above 0. No default."""

    min_nodes: Annotated[int, Knob(key="min_nodes", unit=COUNT, low=0)] = 0
    """Fewest untainted nodes. Range: from 0 to max_nodes. If it and max_nodes are both 0, the cloud group's bounds are
    taken in each pass. Default: 0."""

    max_nodes: Annotated[int, Knob(key="max_nodes", unit=COUNT)] = 0
    """Most untainted nodes. Range: from 1, or 0 together with min_nodes. Default: 0."""

    dry_mode: Annotated[bool, Knob(key="dry_mode", unit=FLAG)] = False
    """Whether plans are only made and not carried out. Default: false."""

    scale_on_starve: Annotated[bool, Knob(key="scale_on_starve", unit=FLAG)] = False
    """Whether a pending pod for which no node has room adds a node. Default: false."""

    anticipation: Annotated[bool, Knob(key="anticipation", unit=FLAG)] = False
    """Whether pods count that do not exist yet: those that a revision's scale asks for, and those that its autoscaler expects
    to want within its ``node-boot-time``. Default: ours, false."""

    taint_effect: Annotated[str, Knob(key="taint_effect", unit=TEXT, choices=TAINT_EFFECTS)] = "NoSchedule"
    """Effect of the removal taint on pods. Default: NoSchedule."""

    max_node_age_s: Annotated[float, Knob(key="max_node_age", unit=DURATION)] = 0.0
    """Age beyond which a node of a group at its minimum is replaced, in seconds from its creation. The new node comes
    first, so max_nodes must be above min_nodes. 0 or less means never. Default: 0."""

    unhealthy_node_grace_period_s: Annotated[float, Knob(key="unhealthy_node_grace_period", unit=DURATION, above=0)] = (
        0.0
    )
    """Age from which a node that is not ready is unhealthy and is tainted, in seconds from its creation. 0, written
    as no value at all, turns health checks off. Default: 0."""

    health_check_newest_nodes_percent: Annotated[int, Knob(key="health_check_newest_nodes_percent", unit=COUNT)] = 0
    """Share of the newest nodes that tells whether the group is healthy, in percent. Range: 1 to 100 where
    unhealthy_node_grace_period is given, else without effect. Default: 0."""

    max_unhealthy_nodes_percent: Annotated[int, Knob(key="max_unhealthy_nodes_percent", unit=COUNT)] = 0
    """Share of those that may be unhealthy before the group neither grows nor shrinks, in percent. Range: 0 to 99 where
    unhealthy_node_grace_period is given, else without effect. Default: 0."""

    drain_grace_period_s: Annotated[float, Knob(key="drain_grace_period", unit=DURATION, low=0)] = 300.0
    """Time from the end of the hard grace period during which the pods of a node are asked to leave by eviction
    before it is deleted with those that stay, in seconds. 0 means that it is deleted at once with its pods, as
    Escalator does. Default: ours, 5m."""

    scale_up_failure_threshold: Annotated[int, Knob(key="scale_up_failure_threshold", unit=COUNT, low=0)] = 3
    """Scale-ups in a row that bring no node before the circuit breaker opens. 0 means that there is no breaker.
    Default: ours, 3; Escalator's pull request 294 has the key, with 0."""

    scale_up_failure_window_s: Annotated[float, Knob(key="scale_up_failure_window", unit=DURATION, low=0)] = 0.0
    """Time in which a scale-up must bring a node or has failed, in seconds from asking the cloud. 0 means
    scale_up_cool_down_period. Default: ours, 0."""

    scale_up_retry_s: Annotated[float, Knob(key="scale_up_retry", unit=DURATION, above=0)] = 600.0
    """Time from the breaker's opening until one node is asked for as a trial, in seconds; doubles with each trial that
    fails. Default: ours, 10m."""

    scale_up_retry_max_s: Annotated[float, Knob(key="scale_up_retry_max", unit=DURATION, above=0)] = 7200.0
    """Longest time between two such trials, in seconds. Default: ours, 2h."""

    quirks: NodeGroupQuirks = NodeGroupQuirks()
    """Behaviours of the original that are off by default, one flag each."""

    @property
    def takes_cloud_bounds(self) -> bool:
        """Whether min_nodes and max_nodes are those of the cloud group."""
        return self.min_nodes == 0 and self.max_nodes == 0

    def check(self) -> Iterator[Clash]:
        """Contradictions between fields: the order of the thresholds, the bounds, the rates, the grace periods."""
        yield from self._rising("taint_lower_capacity_threshold_percent", "taint_upper_capacity_threshold_percent")
        yield from self._rising("taint_upper_capacity_threshold_percent", "scale_up_threshold_percent")
        if not self.takes_cloud_bounds:
            if self.max_nodes <= 0:
                what = f"max_nodes is {self.max_nodes} while min_nodes is {self.min_nodes}"
                yield Clash(fields=("max_nodes", "min_nodes"), what=what, expected="at least 1, or both 0")
            if self.max_nodes > 0 or self.quirks.follow_on_problems_reported:
                yield from self._rising("min_nodes", "max_nodes", may_equal=not self.quirks.min_equal_to_max_refused)
        yield from self._rising("slow_node_removal_rate", "fast_node_removal_rate", may_equal=True)
        yield from self._rising("soft_delete_grace_period_s", "hard_delete_grace_period_s")

    def _rising(self, low: str, high: str, *, may_equal: bool = False) -> Iterator[Clash]:
        low_value, high_value = getattr(self, low), getattr(self, high)
        if not (low_value < high_value or (may_equal and low_value == high_value)):
            relation = "at most" if may_equal else "less than"
            what = f"{low} {low_value:g} is not {relation} {high} {high_value:g}"
            yield Clash(fields=(low, high), what=what, expected=f"{relation} {high_value:g}")
