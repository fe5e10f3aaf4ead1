"""What Escalator does and its users suffered from, one flag each.

All are off: the product's default is the safe behaviour. ``ORIGINAL`` has all on, and is the original's to the bit; the
conformance cases run with it. Source of the behaviours: atlassian/escalator 043bb1b.
"""

import msgspec


class NodeGroupQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Behaviours of the original. Each is off by default; the string below a flag says what off and on mean."""

    scale_up_ignores_max_nodes: bool = False
    """Only the cloud's own maximum limits growth, and untainting has no limit; the excess over max_nodes is tainted
    again later. Off: max_nodes bounds untainted nodes, nodes on their way and new ones together."""

    lock_stops_reaping: bool = False
    """While the scale lock holds nothing is deleted. Off: nodes whose grace is over go."""

    scale_up_stops_reaping: bool = False
    """A pass that grows the group deletes nothing. Off: nodes that growth does not take back go, and make room."""

    unhealthy_tainted_without_limit: bool = False
    """All unhealthy nodes are tainted at once, down to none, also when the whole group is unhealthy. Off: at most the
    fast removal rate a pass, not below min_nodes, and none while the group is unhealthy; at min_nodes a new node
    comes first (a group of fixed size goes one node below)."""

    deletes_all_or_none: bool = False
    """A batch of deletions that would pass the cloud's minimum is given up whole. Off: as many as fit go, those without
    pods and those tainted longest first."""

    force_taint_overrides_no_delete: bool = False
    """A force-tainted node is deleted in spite of its no-delete annotation. Off: the annotation holds."""

    below_min_does_nothing: bool = False
    """With fewer nodes than min_nodes in all the pass fails and waits for the cloud. Off: the group grows to
    min_nodes."""

    below_min_asks_every_pass: bool = False
    """With fewer untainted nodes than min_nodes the cloud is asked again each pass, although nodes are on their way
    and the lock holds. Off: it is asked for what is not on its way, and not while the lock holds."""

    dry_mode_takes_lock: bool = False
    """A growth that dry mode withholds locks the group all the same. Off: it does not."""

    dry_mode_ignores_real_state: bool = False
    """In dry mode a node counts as cordoned or tainted only if the dry run did it. Off: what is real counts, with the
    dry run's changes on top."""

    capacity_cached_from_first_node: bool = False
    """The capacity of a node, for growth from zero, is that of the first node of the list, whatever its state. Off: the
    smallest of the untainted nodes, so that growth from zero rather asks for one node too many than too few."""

    foreign_pods_do_not_protect: bool = False
    """A node is empty if no pod of the group is on it. Off: other pods keep it too, but for those of DaemonSets and
    static ones."""

    starve_counts_impossible_pods: bool = False
    """A pending pod that is larger than any node adds a node each time the lock opens, up to max_nodes. Off: it does
    not count."""

    starve_counts_bound_pods: bool = False
    """A pod that has its node and is still starting counts as pending. Off: only pods without a node do."""

    starve_compares_resources_apart: bool = False
    """The largest pending request is compared with the largest free amount, each resource for itself, over different
    pods and nodes. Off: a pod starves if no single node has room for both its cpu and its memory."""

    shrinking_crosses_scale_up_threshold: bool = False
    """The removal rates are followed even where the nodes that stay are then above the scale-up threshold, so that a
    small group shrinks and grows for ever. Off: no more nodes are tainted than leave it at the threshold."""

    taints_below_cloud_min: bool = False
    """With the cloud's target below its own minimum, that minimum no longer limits tainting. Off: nothing is
    tainted."""

    min_equal_to_max_refused: bool = False
    """min_nodes equal to max_nodes is an error. Off: it is a group of fixed size."""

    negative_rates_accepted: bool = False
    """Removal rates below 0 pass the check, and add nodes when the group is idle. Off: they are an error."""

    follow_on_problems_reported: bool = False
    """A duration that is missing or does not parse is taken for 0 and reported again for that, and for what follows
    from it. Off: each mistake is reported once."""

    sidecars_count_as_init_containers: bool = False
    """The request of a sidecar counts only while the pod starts. Off: it counts beside the containers, as the scheduler
    counts it."""


ORIGINAL = NodeGroupQuirks(**dict.fromkeys(NodeGroupQuirks.__struct_fields__, True))
