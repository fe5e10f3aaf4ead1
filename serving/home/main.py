"""The control process: ``python -m serving.home.main`` runs the store, its API, the controllers, and the kubelet.

Environment, from the supervisor: ``SERVING_STATE`` (the state folder), ``SERVING_KEY_FILE``, ``SERVING_STATS_URL``, and
``SERVING_LISTEN_FDS`` with the socket "api". The journal restores users' objects, pods are adopted from the template,
and all other objects are rebuilt. The API responds once this is done. So an early client waits, and never reads a route
without its status or a slice without its pods.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import contextlib
import functools
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from serving.controller.io.controller import Controller, ControllerConfig
from serving.core.model.objects import Object
from serving.core.model.routehosts import HostRules
from serving.home.admission.admission import admit
from serving.home.admission.hostprograms import without_host_programs
from serving.home.admission.namespacerules import NamespaceRules
from serving.home.admission.podsecurity import PodSecurity
from serving.home.admission.policynames import with_known_policy
from serving.home.apiserver.accounttokens import read_account_token
from serving.home.apiserver.audit import AUDIT_BYTES_MAX, AUDIT_FILE, AUDIT_FILES_MAX, AuditLog
from serving.home.apiserver.reviews import TokenReviews
from serving.home.apiserver.server import ApiOptions, application
from serving.home.containers.cgroups import CgroupTree, find_cgroups
from serving.home.containers.engine import RUNTIME_VARIABLE
from serving.home.containers.nameserver import NameResponses, NameServer
from serving.home.containers.network import cgroup_name_of
from serving.home.containers.podsandbox import ContainerHost, container_host
from serving.home.controllers.addresses import HostsFiles, ServiceHosts, publish_activators
from serving.home.controllers.claimkeeper import ClaimKeeper
from serving.home.controllers.diskspace import collect_images, collect_snapshots
from serving.home.controllers.garbage import collect_garbage
from serving.home.controllers.ingresses import Ingresses
from serving.home.controllers.manager import Manager, until_rebuilt
from serving.home.controllers.namespaceobjects import NamespaceObjects
from serving.home.controllers.podscaler import PodScaler
from serving.home.controllers.revisionviews import RevisionViews
from serving.home.controllers.scheduler import PodScheduler
from serving.home.kubelet.kubelet import Kubelet
from serving.home.kubelet.nodecontext import NodeContext, gone_log_limits
from serving.home.kubelet.podstreams import FilePodLogs, LocalPodStreams
from serving.home.kubelet.virtualnodes import VIRTUAL_NODES_VARIABLE, VirtualNodes
from serving.home.processes.confine import ISOLATION_VARIABLE
from serving.home.processes.isolation import GAP_VARIABLE, MODES, isolation_of
from serving.home.processes.processruntime import ProcessRuntime
from serving.home.state import StateFolder
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.net.aio.daemon import collect_in_small_steps, inherited_sockets, run_daemon
from serving.net.aio.handshakes import Handshakes
from serving.net.aio.linefile import LineFile
from serving.net.aio.startup import report_serving
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.configmaps import followed
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster, Subresource
from serving.net.metrics.controller import ControllerMetrics, LocalMetrics
from serving.net.metrics.export import exporting
from serving.net.metrics.queries import QueryGate
from serving.net.metrics.server import measured, running, serve_page
from serving.net.wire.issuing import authority_of
from serving.net.wire.tokens import read_key

if TYPE_CHECKING:
    from serving.home.controllers.scheduler import NodePlacing

_log = logging.getLogger("control")

# Longest wait before the API answers although not everything is rebuilt, in seconds.
_REBUILD_S = 5.0


async def _body(stop: asyncio.Event) -> None:
    state = StateFolder(Path(os.environ["SERVING_STATE"]))
    config = ControllerConfig(os.environ)
    containers = await asyncio.to_thread(_container_host, state.path)
    cluster, rules, security = _store(state, config, has_runtime=containers is not None)
    virtual = _virtual_nodes()
    inner_port = int(os.environ["SERVING_LOCAL_INNER_PORT"])
    hosts = HostsFiles(cluster, state.hosts, lambda: config.own.settings, inner_port=inner_port)
    scheduler = PodScheduler(cluster, _placing(virtual))
    sockets, metrics = inherited_sockets(), ControllerMetrics()
    try:
        async with (
            supervise() as group,
            # Before the pods, because settings such as inner TLS affect their start.
            followed(cluster, system_namespace(), config.all) as watch,
            contextlib.AsyncExitStack() as stack,
        ):
            node = await _node(state, cluster, config, containers=containers, virtual=virtual, hosts=hosts)
            kubelet = Kubelet(node)
            views = RevisionViews(cluster)
            api = _api(cluster, state, kubelet, security=security, views=views, has_runtime=containers is not None)
            api.middlewares.insert(
                0, measured(LocalMetrics(metrics.page, pods=lambda: kubelet.pod_count).record_response)
            )
            settings = config.own.settings
            controller = Controller(
                cluster, settings=settings, scaling=config.scaling.settings, metrics=metrics, statuses=views.statuses
            )
            metrics.term_began(controller)
            stack.enter_context(config.applied_to(controller, watch))
            tasks = [group.start(node.runtime.run(), name="runtime")]
            await kubelet.adopt()
            await kubelet.sweep()
            rules.enforce()
            tasks += [group.start(kubelet.run(), name="kubelet"), group.start(hosts.run(), name="hosts")]
            tasks.append(group.start(views.run(), name="views"))
            manager = Manager(cluster, scheduler, reach=kubelet.reach, statuses=views.statuses)
            tasks += _start_controllers(group, cluster, state, scheduler=scheduler, manager=manager)
            ingresses = Ingresses(cluster, lambda: config.own.settings.host_rules.domain)
            tasks.append(group.start(ingresses.run(), name="ingresses"))
            tasks += _beside_containers(group, cluster, containers, rules=lambda: config.own.settings.host_rules)
            await publish_activators(cluster, system_namespace(), inner_port=inner_port)
            controlling = group.start(controller.run(stop), name="controller")
            await until_rebuilt(cluster, within_s=_REBUILD_S)
            where = sockets.get("control-metrics") or settings.metrics_address
            page = serve_page(metrics.page, where, gate=QueryGate.of_environment())
            sending = exporting(settings.otlp, metrics.page, service="control")
            async with page, sending, running(api, sockets["api"], tls=Handshakes(state.certificate.server_context())):
                report_serving()
                await controlling
            for task in tasks:
                task.cancel()
    finally:
        await cluster.close()


async def _node(
    state: StateFolder,
    cluster: MemoryCluster,
    config: ControllerConfig,
    *,
    containers: ContainerHost | None,
    virtual: VirtualNodes | None,
    hosts: HostsFiles,
) -> NodeContext:
    """The context of all pods of this node. The mode of inner TLS is fixed at the start; other settings may change."""
    key, inner_tls = read_key(state.key), config.proxy.settings.inner_tls.resolved(os.environ)
    return NodeContext(
        cluster=cluster,
        restore=cluster.restore,
        runtime=ProcessRuntime(state.template),
        pods=state.pods,
        logs=state.logs / "pods",
        snapshots=state.snapshots,
        stats_url=os.environ["SERVING_STATS_URL"],
        key=key,
        authority=authority_of(key, inner_tls),
        containers=containers,
        cgroups=await asyncio.to_thread(_cgroups, state.path, containers),
        hosts_of=hosts.file_of,
        virtual=virtual,
        isolation_gap=os.environ.get(GAP_VARIABLE, ""),
        isolation=isolation_of(os.environ.get(ISOLATION_VARIABLE, MODES[0]), state.path),
        proxy=lambda: msgspec.structs.replace(config.proxy.settings, inner_tls=inner_tls),
        scaling=lambda: config.scaling.settings,
        gone_logs=lambda: gone_log_limits(config.own.settings),
        eviction_free_ratio=lambda: config.own.settings.eviction_free_ratio,
        projected_bytes_max=lambda: config.own.settings.projected_bytes_max,
    )


def _api(
    cluster: MemoryCluster,
    state: StateFolder,
    kubelet: Kubelet,
    *,
    security: PodSecurity,
    views: RevisionViews,
    has_runtime: bool,
) -> web.Application:
    """The API server, with its audit log in the folder of logs."""
    audit = LineFile(state.logs / AUDIT_FILE, bytes_max=AUDIT_BYTES_MAX, files_max=AUDIT_FILES_MAX)

    async def audited(_: web.Application) -> AsyncIterator[None]:
        with audit:
            yield

    options = ApiOptions(
        token=state.token.read_text(),
        token_reviews=TokenReviews(functools.partial(read_account_token, read_key(state.key))),
        runs_images=has_runtime,
        pod_security=security,
        views=views,
        audit=AuditLog(audit.add),
    )
    logs = FilePodLogs(state.logs / "pods")
    api = application(cluster, options, logs=logs, streams=LocalPodStreams(kubelet, logs))
    api.cleanup_ctx.append(audited)
    return api


def _store(
    state: StateFolder, config: ControllerConfig, *, has_runtime: bool
) -> tuple[MemoryCluster, NamespaceRules, PodSecurity]:
    """The store with its admission rules, the rules per namespace, and the Pod Security rules.

    Rules per namespace are enforced only after a call of ``NamespaceRules.enforce``.
    """

    def admitted(
        kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        settings = config.scaling.settings
        features = config.own.settings
        whole = admit(kind, new, old, subresource=subresource, scaling=settings, features=features, is_one_machine=True)
        whole = with_known_policy(kind, whole, old, policies=lambda: _policies(state.path))
        return without_host_programs(kind, whole, old, has_runtime=has_runtime)

    def ruled(kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None) -> Object:
        return rules.admit(kind, new, old, subresource=subresource)

    cluster = MemoryCluster(Journal(state.journal), admit=admitted, rules=ruled)
    security = PodSecurity(cluster.table, lambda: config.own.settings)
    rules = NamespaceRules(cluster.table, security)
    return cluster, rules, security


def _policies(state: Path) -> list[str]:
    from serving.net.aio.policyclasses import POLICIES_FOLDER, policy_names  # noqa: PLC0415 - few objects name one

    return policy_names(state / POLICIES_FOLDER)


def _start_controllers(
    group: SupervisedTasks, cluster: MemoryCluster, state: StateFolder, *, scheduler: PodScheduler, manager: Manager
) -> list[asyncio.Task[None]]:
    """Start the controllers that a Kubernetes cluster would provide itself."""
    jobs = {
        "namespaces": NamespaceObjects(cluster).run(),
        "scheduler": scheduler.run(),
        "manager": manager.run(),
        "pod scaler": PodScaler(cluster).run(),
        "claims": ClaimKeeper(cluster, state.volumes).run(),
        "garbage": collect_garbage(cluster),
        "snapshots": collect_snapshots(cluster, state),
    }
    return [group.start(job, name=name) for name, job in jobs.items()]


def _beside_containers(
    group: SupervisedTasks, cluster: Cluster, containers: ContainerHost | None, *, rules: Callable[[], HostRules]
) -> list[asyncio.Task[None]]:
    """Start the services that containers need: the DNS server, its list of hosts, and the removal of unused images."""
    if containers is None:
        return []
    images = group.start(collect_images(cluster, containers.images.store), name="images")
    if containers.networks is None:
        return [images]
    gateway, hosts = containers.networks.gateway, ServiceHosts(cluster, rules)
    server = NameServer(
        gateway.inner, NameResponses(inner=gateway.inner, public=gateway.public), hosts, named=hosts.named
    )
    return [
        images,
        group.start(server.run(), name="names"),
        *(group.start(reflector.run(), name="hosts") for reflector in hosts.reflectors),
    ]


def _container_host(state: Path) -> ContainerHost | None:
    host, reason = container_host(state, os.environ.get(RUNTIME_VARIABLE, ""))
    if host is None:
        _log.warning("containers.unavailable", extra={"reason": reason})
    return host


def _cgroups(state: Path, containers: ContainerHost | None) -> CgroupTree | None:
    """The cgroups for processes, which are those for containers if there are any; None if there can be none."""
    if containers is not None and containers.cgroups is not None:
        return containers.cgroups
    return find_cgroups(cgroup_name_of(state)) if os.geteuid() == 0 else None


def _virtual_nodes() -> VirtualNodes | None:
    written = os.environ.get(VIRTUAL_NODES_VARIABLE)
    return msgspec.json.decode(written, type=VirtualNodes) if written else None


def _placing(virtual: VirtualNodes | None) -> "NodePlacing | None":
    if virtual is None:
        return None
    from serving.home.controllers.scheduler import NodePlacing  # noqa: PLC0415 - numpy, where there are virtual nodes only

    return NodePlacing(virtual.policy)


def main() -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    collect_in_small_steps()
    return run_daemon("control", _body)


if __name__ == "__main__":
    sys.exit(main())
