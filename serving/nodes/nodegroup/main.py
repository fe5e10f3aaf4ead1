"""The node group daemon: ``python -m serving.nodes.nodegroup.main``.

Environment:

- ``KUBECONFIG``: the server whose Nodes, Pods and NodeGroups are watched; without it, the pod's own cluster.
- ``SERVING_NODEGROUP_<FIELD>``: each setting of ``serving.core.settings.nodegroup`` in its plain unit. The ConfigMap
  config-nodegroup may change groups, interval and dry mode while it runs.
- ``SERVING_ELECTION_ENABLED``: whether only the holder of the lease ``nodegroup`` works; the lease fences all writes.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"nodegroup-metrics": 3}``; without it the settings' address.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import logging
import os
import sys
from collections.abc import Callable

from serving.core.settings.daemons import DAEMONS, ELECTION, NODEGROUP
from serving.core.settings.live import LiveSettings
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.core.settings.nodegroup_options import AwsOptions, aws_options_of
from serving.net.aio.daemon import inherited_sockets, run_daemon
from serving.net.aio.startup import report_serving
from serving.net.cluster.configmaps import followed
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.identity import new_identity, system_namespace
from serving.net.cluster.kube import connect
from serving.net.cluster.leases.holder import Leader
from serving.net.cluster.leases.lease import LeaseClient, LeaseName
from serving.net.cluster.leases.rules import lease_times
from serving.net.cluster.port import Cluster
from serving.net.metrics.nodegroup import NodeGroupMetrics
from serving.net.metrics.queries import QueryGate
from serving.net.metrics.server import serve_page
from serving.nodes.nodegroup.groups import GroupReading, groups_of_text
from serving.nodes.nodegroup.io.clouds.choice import CloudContext, opened_cloud
from serving.nodes.nodegroup.io.loop import NodeGroupLoop, PassCounts
from serving.nodes.nodegroup.io.passes import NodeGroupPasses

_log = logging.getLogger("nodegroup")

_LEASE = "nodegroup"
_WHERE = "config-nodegroup"


class _WrittenGroups:
    """The groups in the settings. They are parsed again when the text changes; problems are logged once."""

    def __init__(self, settings: Callable[[], NodeGroupDaemonSettings]) -> None:
        self._settings = settings
        self._text = ""
        self._reading = GroupReading()

    def __call__(self) -> GroupReading:
        text = self._settings().node_groups
        if text != self._text:
            self._text = text
            self._reading = groups_of_text(text, where=_WHERE)
            for problem in self._reading.problems:
                _log.error("group.refused", extra={"problem": str(problem)})
            for problem in self._reading.ignored:
                _log.warning("group.key_ignored", extra={"problem": str(problem)})
        return self._reading


async def _body(stop: asyncio.Event) -> None:
    own = LiveSettings(NODEGROUP, registry=DAEMONS, environment=os.environ)
    electing = LiveSettings(ELECTION, registry=DAEMONS, environment=os.environ)
    identity, aws = new_identity(), dict[str, AwsOptions]()
    async with (
        connect("nodegroup", identity=identity) as cluster,
        followed(cluster, system_namespace(), [own, electing]),
        opened_cloud(
            CloudContext(settings=own.settings, cluster=cluster, aws_options=lambda group: aws.get(group, AwsOptions()))
        ) as cloud,
    ):
        election = electing.settings
        lease = LeaseClient(cluster, LeaseName(namespace=system_namespace(), name=_LEASE))
        leader = Leader(lease, identity, times=lease_times(election)) if election.enabled else None
        metrics = NodeGroupMetrics(is_leading=lambda: leader is None or leader.is_leading)
        written = _WrittenGroups(lambda: own.settings)

        async def work(through: Cluster, check: Callable[[], None]) -> None:
            counts = PassCounts(metrics, cloud=lambda: own.settings.cloud_provider)
            passes = NodeGroupPasses(
                through,
                cloud,
                written=written,
                check=check,
                dry_mode=lambda: own.settings.dry_mode,
                on_groups=lambda groups: aws.update(
                    {group.settings.cloud_provider_group_name: aws_options_of(group.options) for group in groups}
                ),
                on_pass=counts.count,
                on_cloud_error=counts.count_cloud_error,
            )
            await NodeGroupLoop(passes, lambda: own.settings, metrics).run(stop)

        where = inherited_sockets().get("nodegroup-metrics") or own.settings.metrics_address
        async with serve_page(metrics.page, where, gate=QueryGate.of_environment()):
            report_serving()
            if leader is None:
                await work(cluster, lambda: None)
                return
            await leader.run(lambda: work(FencedCluster(cluster, leader.check), leader.check), stop)


def main() -> int:
    """Run until stopped; return the exit code."""
    return run_daemon("nodegroup", _body)


if __name__ == "__main__":
    sys.exit(main())
