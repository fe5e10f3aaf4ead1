"""The controller: ``python -m serving.controller.main``, for the cluster in KUBECONFIG, or of the pod.

Settings come from defaults and ``SERVING_CONTROLLER_...``. The autoscaler's settings are read too, because they
determine a revision's initial scale. With ``SERVING_ELECTION_ENABLED`` only the holder of the lease ``controller``
works. Each term starts with an empty cache, and the lease fences all writes.

With ``SERVING_CONTROLLER_SIDECAR_ENABLED`` the queue-proxy is a container of each pod. The secrets of revisions are
derived from the key in ``SERVING_KEY_FILE``, or else from the Secret ``serving-key``, which the controller creates
once. It also creates the token of queries, and the dashboard's token in the Secret that
``SERVING_ACTIONS_TOKEN_SECRET`` names. ``SERVING_QUEUEPROXY_...`` and the ConfigMap config-queueproxy apply to all
queue-proxies. If the settings have no image, the image is that of the pod that ``SERVING_POD_NAME`` and
``SERVING_SYSTEM_NAMESPACE`` name.

``SERVING_LISTEN_FDS`` are bound sockets by name, ``{"controller-metrics": 3}``; without it the metrics page listens on
the address in the settings.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import logging
import os
import sys

from serving.controller.io.controller import Controller, ControllerConfig
from serving.controller.io.makekey import ClusterKey, cluster_key, make_tokens, write_authority
from serving.controller.revisions.sidecar import Sidecar
from serving.core.model.errors import Problem, SettingsError
from serving.core.model.launch import KEY_FILE_VARIABLE
from serving.core.model.ports import STATS_PORT
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.innertls import OF_KEY_VARIABLE
from serving.core.settings.queueproxy import QueueProxySettings
from serving.net.aio.daemon import collect_in_small_steps, inherited_sockets, run_daemon
from serving.net.cluster.configmaps import followed
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.identity import new_identity, system_namespace
from serving.net.cluster.kinds import POD
from serving.net.cluster.kube import connect
from serving.net.cluster.leases.holder import Leader
from serving.net.cluster.leases.lease import LeaseClient, LeaseName
from serving.net.cluster.leases.rules import lease_times
from serving.net.cluster.port import Cluster
from serving.net.metrics.controller import ControllerMetrics
from serving.net.metrics.export import exporting
from serving.net.metrics.queries import QueryGate
from serving.net.metrics.server import serve_page
from serving.net.wire.issuing import authority_of
from serving.net.wire.tokens import read_key, revision_secret, revision_token

_log = logging.getLogger("controller")

_LEASE = "controller"
_ACTIONS_TOKEN_VARIABLE = "SERVING_ACTIONS_TOKEN_SECRET"  # noqa: S105 - the name of a variable
_POD_NAME_VARIABLE = "SERVING_POD_NAME"
# The port of the Service ``autoscaler`` in config/daemons.


async def _body(stop: asyncio.Event) -> None:
    config = ControllerConfig(os.environ)
    identity = new_identity()
    async with (
        connect("controller", identity=identity) as cluster,
        followed(cluster, system_namespace(), config.all) as watch,
    ):
        settings, election = config.own.settings, config.election.settings
        lease = LeaseClient(cluster, LeaseName(namespace=system_namespace(), name=_LEASE))
        leader = Leader(lease, identity, times=lease_times(election)) if election.enabled else None
        metrics = ControllerMetrics(is_leading=lambda: leader is None or leader.is_leading)

        async def work(through: Cluster) -> None:
            own, scaling = config.own.settings, config.scaling.settings
            sidecar = await _sidecar(cluster, own, config.proxy.settings)
            controller = Controller(through, settings=own, scaling=scaling, sidecar=sidecar, metrics=metrics)
            metrics.term_began(controller)
            with config.applied_to(controller, watch):
                await controller.run(stop)

        sending = exporting(settings.otlp, metrics.page, service="controller")
        where = inherited_sockets().get("controller-metrics") or settings.metrics_address
        async with serve_page(metrics.page, where, gate=QueryGate.of_environment()), sending:
            if leader is None:
                await work(cluster)
                return
            await leader.run(lambda: work(FencedCluster(cluster, leader.check)), stop)


async def _sidecar(cluster: Cluster, settings: ControllerSettings, proxy: QueueProxySettings) -> Sidecar | None:
    """The shared configuration of queue-proxies; None unless they are containers."""
    own = settings.sidecar
    if not settings.sidecar_enabled:
        return None
    cluster_key = await _key(cluster)
    key, inner_tls = (
        cluster_key.key,
        settings.inner_tls.resolved({**os.environ, OF_KEY_VARIABLE: cluster_key.inner_tls}),
    )
    authority = authority_of(key, inner_tls)
    _log.info("controller.inner_tls", extra={"mode": inner_tls.mode})
    if not os.environ.get(KEY_FILE_VARIABLE):
        await write_authority(cluster, system_namespace(), authority)
    # With the final dot no search domain of the pod is tried first: that takes three more queries.
    home = f"{system_namespace()}.svc.{settings.cluster_domain}."
    return Sidecar(
        settings=own,
        image=await _own_image(cluster, named=own.image),
        stats_url=f"ws://autoscaler.{home}:{STATS_PORT}/stats",
        secret_of=lambda namespace, uid: revision_secret(key, namespace=namespace, uid=uid),
        token_of=lambda namespace, name: revision_token(key, namespace=namespace, revision=name),
        proxy=proxy,
        inner_tls=inner_tls,
        authority=authority,
    )


async def _key(cluster: Cluster) -> ClusterKey:
    path, namespace = os.environ.get(KEY_FILE_VARIABLE), system_namespace()
    if path:
        return ClusterKey(key=read_key(path), inner_tls=os.environ.get(OF_KEY_VARIABLE, ""))
    await make_tokens(cluster, namespace, actions=os.environ.get(_ACTIONS_TOKEN_VARIABLE, ""))
    return await cluster_key(cluster, namespace)


async def _own_image(cluster: Cluster, *, named: str) -> str:
    """The image of this pod; outside of a pod, ``named``."""
    if named and not os.environ.get(_POD_NAME_VARIABLE):
        return named
    name = _needed(_POD_NAME_VARIABLE, "this pod's name, or sidecar.image")
    listing = await cluster.list(POD, system_namespace(), field_selector=f"metadata.name={name}")
    for pod in listing.items:
        return str(pod["spec"]["containers"][0]["image"])
    if named:
        return named
    problem = Problem(where=_POD_NAME_VARIABLE, what=f"there is no pod {name}", expected="this pod's name")
    raise SettingsError([problem])


def _needed(variable: str, expected: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise SettingsError([Problem(where=f"environment {variable}", what="is missing", expected=expected)])
    return value


def main() -> int:
    """Run until stopped; return the exit code."""
    collect_in_small_steps()
    return run_daemon("controller", _body)


if __name__ == "__main__":
    sys.exit(main())
