"""The context shared by all pods of this machine."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from serving.core.model.knative import REVISION_LABEL, TEMPLATE_ANNOTATION
from serving.core.model.objects import Object, annotations_of, labels_of, namespace_of
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.queueproxy import QueueProxySettings
from serving.home.containers.cgroups import CgroupTree
from serving.home.containers.podsandbox import ContainerHost
from serving.home.kubelet.startpace import StartPacer
from serving.home.kubelet.virtualnodes import VirtualNodes
from serving.home.pods.podfolder import warm_folder
from serving.home.pods.podlogs import GoneLogLimits
from serving.home.pods.podplan import has_own_network, is_own_proxy
from serving.home.processes.isolation import Isolation
from serving.home.processes.processruntime import ProcessRuntime
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster


def gone_log_limits(settings: ControllerSettings) -> GoneLogLimits:
    """The limits for logs of deleted pods, from the settings."""
    return GoneLogLimits(retention_s=settings.gone_logs_retention_s, bytes_max=settings.gone_logs_bytes_max)


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """Shared by all pods on this node: store, runtime, folders, address for statistics, and cluster key.

    Network: ``hosts_of`` returns the hosts file for a namespace's pods, with the names of services, or "" for the
    machine's. ``reported_network`` replaces the "127." of a pod's address in its status, for servers that refuse
    loopback addresses; activators reverse this (``pod_address_override``).

    Nodes: ``name`` is the node's name. ``virtual`` are the virtual nodes, None if the machine is one node.
    ``registers``: this kubelet creates and removes the server's Nodes.

    Processes: ``containers`` runs images, None if this machine cannot. ``cgroups`` are for the limits of processes.
    ``pacer`` limits concurrent starts. ``isolation`` is that of processes, None for none; ``isolation_gap`` names the
    missing layers. ``restore`` creates a pod of an earlier process, with its uid if the store supports that.
    ``authority`` is the certificate by which queue-proxies identify daemons, "" without inner TLS.

    Settings: ``proxy`` are those of queue-proxies, ``scaling`` those of the autoscaler. ``gone_logs`` bounds the logs
    of deleted pods. ``eviction_free_ratio`` is the free part of the disk below which pods are evicted.
    ``projected_bytes_max`` bounds the files of ConfigMaps, Secrets and tokens in a pod's volumes.
    """

    cluster: Cluster
    runtime: ProcessRuntime
    pods: Path
    logs: Path
    snapshots: Path
    stats_url: str
    key: bytes
    hosts_of: Callable[[str], str] = lambda _: ""
    name: str = "local"
    reported_network: str = "127."
    containers: ContainerHost | None = None
    cgroups: CgroupTree | None = None
    pacer: StartPacer = msgspec.field(default_factory=StartPacer)
    virtual: VirtualNodes | None = None
    registers: bool = True
    isolation: Isolation | None = None
    isolation_gap: str = ""
    authority: str = ""
    proxy: Callable[[], QueueProxySettings] = QueueProxySettings
    scaling: Callable[[], AutoscalerSettings] = AutoscalerSettings
    restore: Callable[[Kind, Object], Awaitable[Object]] | None = None
    gone_logs: Callable[[], GoneLogLimits] = lambda: gone_log_limits(ControllerSettings())
    eviction_free_ratio: Callable[[], float] = lambda: ControllerSettings().eviction_free_ratio
    projected_bytes_max: Callable[[], int] = lambda: ControllerSettings().projected_bytes_max

    @property
    def volumes(self) -> Path:
        """The folder that contains the folders of PersistentVolumeClaims."""
        return self.pods.parent / "volumes"

    @property
    def evictions(self) -> Path:
        """The file that stores the pauses after evictions."""
        return self.pods.parent / "evictions.json"

    def warm_revision_of(self, pod: Object) -> str:
        """The revision, NAMESPACE/NAME, whose warm process forks a pod; "" for other pods.

        With strict isolation there is none: each pod has a separate user, and an unprivileged process cannot change its
        user after a fork.
        """
        annotations, labels = annotations_of(pod), labels_of(pod)
        if annotations.get(TEMPLATE_ANNOTATION) != "preload" or (self.isolation and self.isolation.is_strict):
            return ""
        is_other = has_own_network(pod) or any(is_own_proxy(pod, container) for container in pod["spec"]["containers"])
        return "" if is_other else f"{namespace_of(pod)}/{labels.get(REVISION_LABEL, '')}"

    def folder_of(self, pod: Object, pod_id: str) -> Path:
        """The folder of a pod. A warm process sees the parent folder of all its pods."""
        revision = self.warm_revision_of(pod) if self.isolation else ""
        return (warm_folder(self.pods, revision) if revision else self.pods) / pod_id
