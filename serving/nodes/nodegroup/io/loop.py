"""The loop of the daemon: an immediate pass over all groups, then one per scan interval, with metrics."""

import asyncio
import logging
from collections.abc import Callable

from serving.core.model.errors import CloudError, NotLeading
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.net.aio.clock import now_s, steady_s
from serving.net.aio.periodic import wait_for
from serving.net.aio.supervise import supervise
from serving.net.metrics.nodegroup import LOCK_DURATION, REGISTRATION_LAG, NodeGroupMetrics
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.group_memory import ScaleLock
from serving.nodes.nodegroup.io.passes import GroupPass, NodeGroupPasses
from serving.nodes.nodegroup.plan import DeleteNodes, GroupRule, Taint, Untaint
from serving.nodes.nodegroup.status import gauges_of, registration_lags, room_gauges

_log = logging.getLogger("nodegroup")

# How soon a change of the interval is detected, in seconds.
_SETTINGS_PERIOD_S = 1.0


class PassCounts:
    """Updates metrics after each pass, in which every node group is decided on once.

    ``cloud`` returns the cloud's name for labels, such as "aws".
    """

    def __init__(self, metrics: NodeGroupMetrics, *, cloud: Callable[[], str]) -> None:
        self._metrics = metrics
        self._cloud = cloud
        self._locks: dict[str, ScaleLock | None] = {}
        self._nodes: dict[str, set[str]] = {}

    def count(self, group_pass: GroupPass, book: NodeGroupBook) -> None:
        """Count one pass of a group and its effects."""
        name, metrics, done = group_pass.settings.name, self._metrics, group_pass.done
        metrics.set_gauges(
            name,
            cloud=self._cloud(),
            cloud_id=group_pass.settings.cloud_provider_group_name,
            values={
                **gauges_of(group_pass.plan, group_pass.state, group_pass.cloud),
                **room_gauges(book.extremes(name)),
            },
        )
        self._time_changes(group_pass)
        effects = group_pass.plan.effects
        lost = sum(
            group_pass.pod_counts.get(node, 0)
            for effect in effects
            if isinstance(effect, DeleteNodes)
            for node in effect.node_names
        )
        metrics.counted(name, "escalator_node_group_pods_evicted", done.evicted_count + lost)
        metrics.counted(name, "escalator_node_group_taint_event", sum(isinstance(effect, Taint) for effect in effects))
        metrics.counted(
            name, "escalator_node_group_untaint_event", sum(isinstance(effect, Untaint) for effect in effects)
        )
        metrics.counted(name, "serving_nodegroup_effects_failed_total", len(done.problems))
        failed = sum(text.startswith("delete") for text in done.problems)
        metrics.counted(name, "escalator_node_delete_errors", failed)
        is_locked = any(wanted.rule is GroupRule.LOCK for wanted in group_pass.plan.wanted)
        metrics.counted(name, "escalator_node_group_scale_lock_check_was_locked", int(is_locked))

    def _time_changes(self, group_pass: GroupPass) -> None:
        """Record the duration of released locks, and the time until new nodes were registered."""
        name, now_lock = group_pass.settings.name, group_pass.state.lock
        lock = self._locks.get(name)
        if lock is not None and lock != now_lock:
            self._metrics.lasted(name, LOCK_DURATION, group_pass.at_s - lock.locked_at_s)
        self._locks[name] = now_lock
        parts = group_pass.plan.nodes
        nodes = {
            node.name for part in (parts.untainted, parts.tainted, parts.force_tainted, parts.cordoned) for node in part
        }
        # Nodes from before the first pass are not new.
        for lag_s in registration_lags(group_pass.plan, group_pass.state, known=self._nodes.get(name, nodes)):
            self._metrics.lasted(name, REGISTRATION_LAG, lag_s)
        self._nodes[name] = nodes

    def count_cloud_error(self, group: str, error: CloudError) -> None:
        """Count a failed call to the cloud."""
        self._metrics.counted(group, "serving_nodegroup_cloud_errors_total", 1, error.reason)


class NodeGroupLoop:
    """Decides on all node groups and executes the plans, periodically until stopped. One such round is a pass.

    ``settings`` is called before each pass, because the interval may change.
    """

    def __init__(
        self, passes: NodeGroupPasses, settings: Callable[[], NodeGroupDaemonSettings], metrics: NodeGroupMetrics
    ) -> None:
        self._passes = passes
        self._settings = settings
        self._metrics = metrics

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the cluster and make passes until ``stop`` is set. Raises ``NotLeading`` when the lease is lost."""
        async with supervise() as tasks:
            # Passes must not drain nodes on an outdated view.
            tasks.start_background(self._passes.watch(), name="nodegroup following")
            await self._passes.synced()
            while not stop.is_set():
                begun_s = now_s()
                await self._pass()
                await self._pause(stop, begun_s)

    async def _pause(self, stop: asyncio.Event, begun_s: float) -> None:
        """Wait until the next pass is due. A shortened interval applies immediately."""
        while not stop.is_set() and (rest_s := begun_s + self._settings().scan_interval_s - now_s()) > 0:
            await wait_for(stop, until_s=now_s() + min(rest_s, _SETTINGS_PERIOD_S))

    async def _pass(self) -> None:
        begun_s = steady_s()
        try:
            groups = await self._passes.run_once()
        except NotLeading:
            raise
        except Exception:  # noqa: BLE001 - the outermost frame of a pass: the next one may succeed
            _log.exception("pass.crashed")
            return
        self._metrics.passed(steady_s() - begun_s, [group.settings.name for group in groups])
