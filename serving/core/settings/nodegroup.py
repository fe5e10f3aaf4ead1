"""Settings of one node group: Escalator's keys, and our additions.

A group has one record, which ``serving/core/settings/nodegroup_options.py`` reads from files and objects. Thresholds,
rates and grace periods have no default: they depend on the machines. Source of keys and ranges: atlassian/escalator
043bb1b, docs/configuration/nodegroup.md and pkg/controller/node_group.go, unless a field says otherwise.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from serving.core.settings.knob import COUNT, DURATION, FLAG, TEXT, Clash, Knob, SettingsRecord

TAINT_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
CLOUD_PROVIDERS = ("aws", "cluster-api", "external-grpc", "local", "memory")
"""Names of the clouds in ``nodegroup/io/clouds/choice.py``."""


class NodeGroupQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Harmful behaviours of Escalator, off by default. A flag that is on restores Escalator's behaviour."""

    scale_up_ignores_max_nodes: bool = False
    """Only the cloud's maximum limits growth, and untainting has no limit. Nodes above max_nodes are tainted again
    later. Off: max_nodes bounds the sum of untainted, starting and new nodes."""

    lock_stops_reaping: bool = False
    """No node is deleted while the scale lock is held. Off: nodes past their grace period are deleted."""

    scale_up_stops_reaping: bool = False
    """A pass that adds nodes deletes none. Off: it deletes nodes past their grace period, unless it untaints them."""

    unhealthy_tainted_without_limit: bool = False
    """All unhealthy nodes are tainted at once, even if no node remains or the whole group is unhealthy. Off: a pass
    taints at most the fast removal rate, never below min_nodes, and none while the group is unhealthy. At min_nodes a
    new node comes first; only a group of fixed size goes one node below."""

    deletes_all_or_none: bool = False
    """A batch of deletions below the cloud's minimum is skipped as a whole. Off: as many nodes as possible are deleted,
    first those without pods and those tainted longest."""

    force_taint_overrides_no_delete: bool = False
    """A force-tainted node is deleted despite its no-delete annotation. Off: the annotation is respected."""

    below_min_does_nothing: bool = False
    """With fewer than min_nodes nodes in total, the pass fails. Off: the group grows to min_nodes."""

    below_min_asks_every_pass: bool = False
    """With fewer untainted nodes than min_nodes, each pass requests nodes again, even while nodes start and the scale
    lock is held. Off: a pass requests only missing nodes, and none while the lock is held."""

    dry_mode_takes_lock: bool = False
    """A scale-up that dry mode withholds takes the scale lock. Off: it does not."""

    dry_mode_ignores_real_state: bool = False
    """In dry mode, only the dry run's own cordons and taints count. Off: the real ones count, too.
    """

    capacity_cached_from_first_node: bool = False
    """The node capacity for growth from zero is that of the first listed node, in any state. Off: it is the smallest
    capacity of untainted nodes, because one node too many is better than one too few."""

    foreign_pods_do_not_protect: bool = False
    """A node without pods of the group counts as empty. Off: other pods protect a node, too, except static pods and
    pods of DaemonSets."""

    starve_counts_impossible_pods: bool = False
    """A pending pod that is larger than any node adds a node whenever the scale lock ends, up to max_nodes. Off: such a
    pod does not count."""

    starve_counts_bound_pods: bool = False
    """A bound pod that is still starting counts as pending. Off: only unbound pods count."""

    starve_compares_resources_apart: bool = False
    """For each resource separately, the largest request of any pending pod is compared with the largest free amount of
    any node. Off: a pod starves if no single node has room for both its cpu and its memory."""

    starve_ignores_other_pods: bool = False
    """Only the group's own pods use room on a node. Off: pods of DaemonSets, static pods and foreign pods use room,
    too, as for the scheduler. Utilisation always counts the group's own pods only."""

    shrinking_crosses_scale_up_threshold: bool = False
    """Nodes are tainted at the removal rate even if the remaining nodes exceed the scale-up threshold, so that a small
    group shrinks and grows forever. Off: the remaining nodes stay at or below the threshold.
    """

    taints_below_cloud_min: bool = False
    """While the cloud's target is below the cloud's minimum, the minimum does not limit tainting. Off: nothing is
    tainted then."""

    min_equal_to_max_refused: bool = False
    """min_nodes equal to max_nodes is an error. Off: it defines a group of fixed size."""

    negative_rates_accepted: bool = False
    """Removal rates below 0 are accepted, and add nodes when the group is idle. Off: they are an error."""

    follow_on_problems_reported: bool = False
    """A missing or unreadable duration counts as 0, and each consequence of that is reported as a further problem. Off:
    each mistake is reported once.
    """

    sidecars_count_as_init_containers: bool = False
    """The request of a sidecar counts only while the pod starts. Off: it is added to the containers' requests, as in
    the scheduler."""


ORIGINAL = NodeGroupQuirks(**dict.fromkeys(NodeGroupQuirks.__struct_fields__, True))


class NodeGroupSettings(SettingsRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a node group. Times are in seconds; utilisation is in percent, as in Escalator."""

    name: Annotated[str, Knob(key="name", unit=TEXT)]
    """Name of the group. The group named ``default`` gets the pods that select no nodes. Not empty."""

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
    """Time from the taint until remaining pods must leave the node, in seconds. Range: above the soft one. No
    default.
    """

    scale_up_cool_down_period_s: Annotated[float, Knob(key="scale_up_cool_down_period", unit=DURATION, above=0)]
    """Pause after a scale-up before the next request to the cloud, in seconds: about the time of a machine to become
    a node. Range: above 0. No default.
    """

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
    """Whether to count pods before they exist: those missing from a revision's scale, and those its autoscaler
    expects within its ``node-boot-time``. Default: ours, false.
    """

    taint_effect: Annotated[str, Knob(key="taint_effect", unit=TEXT, choices=TAINT_EFFECTS)] = "NoSchedule"
    """Effect of the removal taint on pods. Default: NoSchedule."""

    max_node_age_s: Annotated[float, Knob(key="max_node_age", unit=DURATION)] = 0.0
    """Age beyond which a node of a group at its minimum is replaced, in seconds from its creation. The new node comes
    first, so max_nodes must be above min_nodes. 0 or less means never. Default: 0."""

    unhealthy_node_grace_period_s: Annotated[float, Knob(key="unhealthy_node_grace_period", unit=DURATION, above=0)] = (
        0.0
    )
    """Age, in seconds from creation, from which an unready node is unhealthy and is tainted. 0, written as
    no value at all, turns health checks off. Default: 0.
    """

    health_check_newest_nodes_percent: Annotated[int, Knob(key="health_check_newest_nodes_percent", unit=COUNT)] = 0
    """Share of the newest nodes that decides whether the group is healthy, in percent. Range: 1 to 100 where
    unhealthy_node_grace_period is given, else without effect. Default: 0."""

    max_unhealthy_nodes_percent: Annotated[int, Knob(key="max_unhealthy_nodes_percent", unit=COUNT)] = 0
    """Share of the newest nodes that may be unhealthy, in percent; above it the group neither grows nor shrinks. Range:
    0 to 99 where unhealthy_node_grace_period is given, else without effect. Default: 0."""

    drain_grace_period_s: Annotated[float, Knob(key="drain_grace_period", unit=DURATION, low=0)] = 300.0
    """Time after the hard grace period in which the pods of a node are evicted, in seconds; then the node is deleted
    with its remaining pods. 0 deletes the node with its pods at once, as Escalator does. Default: ours, 5m."""

    scale_up_failure_threshold: Annotated[int, Knob(key="scale_up_failure_threshold", unit=COUNT, low=0)] = 3
    """Consecutive scale-ups without a new node before the circuit breaker opens. 0 means no circuit breaker. Default:
    ours, 3; Escalator's pull request 294 has the key, with 0.
    """

    scale_up_failure_window_s: Annotated[float, Knob(key="scale_up_failure_window", unit=DURATION, low=0)] = 0.0
    """Time from a request to the cloud after which a scale-up without a new node has failed, in seconds. 0 means
    scale_up_cool_down_period. Default: ours, 0."""

    scale_up_retry_s: Annotated[float, Knob(key="scale_up_retry", unit=DURATION, above=0)] = 600.0
    """Time from the opening of the circuit breaker to the request of one trial node, in seconds; doubles with each
    failed trial. Default: ours, 10m."""

    scale_up_retry_max_s: Annotated[float, Knob(key="scale_up_retry_max", unit=DURATION, above=0)] = 7200.0
    """Longest time between two trial nodes, in seconds. Default: ours, 2h."""

    quirks: NodeGroupQuirks = NodeGroupQuirks()
    """Behaviours of Escalator that are off by default, one flag each."""

    @property
    def takes_cloud_bounds(self) -> bool:
        """Whether min_nodes and max_nodes come from the cloud's group."""
        return self.min_nodes == 0 and self.max_nodes == 0

    def check(self) -> Iterator[Clash]:
        """Yield contradictions between fields: thresholds, bounds, rates and grace periods."""
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


class NodeGroupDaemonSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of the node group daemon."""

    node_groups: Annotated[str, Knob(key="nodegroups_config.yaml", unit=TEXT, live=True)] = ""
    """Node groups in Escalator's format, a YAML text with the list node_groups. Each group becomes a NodeGroup object.
    Default: ours, no group.
    """

    scan_interval_s: Annotated[float, Knob(key="scan-interval", unit=DURATION, above=0, high=3600, live=True)] = 60.0
    """Time between two passes over all groups, in seconds. Range: above 0, up to 1h. Default: Escalator, 60s."""

    dry_mode: Annotated[bool, Knob(key="dry-mode", unit=FLAG, live=True)] = False
    """Whether the daemon plans changes of all groups without executing them. Default: Escalator, false."""

    cloud_provider: Annotated[str, Knob(key="cloud-provider", unit=TEXT, choices=CLOUD_PROVIDERS)] = "cluster-api"
    """Cloud of the groups' machines. memory is for tests and stores nothing. Default: ours, cluster-api."""

    cloud_timeout_s: float = 30.0
    """Longest time for one call of the cloud, in seconds. Source: ours, 30s."""

    aws_region: Annotated[str, Knob(key="aws-region", unit=TEXT)] = ""
    """Region of the Auto Scaling groups. Empty means the region of the AWS environment. Default: ours, empty."""

    aws_endpoint_url: Annotated[str, Knob(key="aws-endpoint-url", unit=TEXT)] = ""
    """Another address of the AWS API, for private endpoints and tests. Default: ours, empty."""

    aws_assume_role_arn: Annotated[str, Knob(key="aws-assume-role-arn", unit=TEXT)] = ""
    """AWS role that the daemon assumes before its first call. Empty means no role. Default: Escalator, empty."""

    grpc_address: Annotated[str, Knob(key="external-grpc-address", unit=TEXT)] = ""
    """Host and port of a provider of cluster-autoscaler's externalgrpc protocol. Default: ours, empty."""

    grpc_ca_file: Annotated[str, Knob(key="external-grpc-ca-file", unit=TEXT)] = ""
    """CA certificates (PEM) of the provider at external-grpc-address. Empty means plain text without TLS. Default:
    ours, empty.
    """

    grpc_certificate_file: Annotated[str, Knob(key="external-grpc-certificate-file", unit=TEXT)] = ""
    """Client certificate (PEM) for the provider at external-grpc-address. Empty means no certificate. Default: ours,
    empty.
    """

    grpc_key_file: Annotated[str, Knob(key="external-grpc-key-file", unit=TEXT)] = ""
    """Key (PEM) of the certificate in external-grpc-certificate-file. Default: ours, empty."""

    metrics_address: Annotated[str, Knob(key="metrics-address", unit=TEXT)] = "127.0.0.1:6085"
    """Host and port of the metrics page. Default: ours, 127.0.0.1:6085; Escalator's is :8080."""
