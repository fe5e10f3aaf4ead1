"""The context shared by all pods of this machine."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from serving.cluster.port import Cluster
from serving.home.containers.podsandbox import ContainerHost
from serving.home.kubelet.startpace import StartPacer
from serving.home.kubelet.virtualnodes import VirtualNodes
from serving.home.processes.isolation import Isolation
from serving.home.processes.processruntime import ProcessRuntime
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.queueproxy import QueueProxySettings


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """What pods on this node share: store, runtime, folders, sink of statistics, and cluster key.

    ``hosts`` is the hosts file of pods, with the names of services. ``name`` is the node's name. ``reported_network``
    replaces the "127." of a pod's address in its status, for servers that refuse loopback addresses; activators undo it
    (``pod_address_override``). ``containers`` runs images, None if this machine cannot. ``pacer`` bounds how many pods
    start at once. ``virtual`` are the virtual nodes of this machine, None if it is one node. ``proxy`` are the current
    settings of queue-proxies, ``scaling`` those of the autoscaler. ``authority`` is the certificate by which queue-proxies know
    daemons, "" without inner TLS. ``isolation`` is that of processes, None for none.
    """

    cluster: Cluster
    runtime: ProcessRuntime
    pods: Path
    logs: Path
    snapshots: Path
    stats_url: str
    key: bytes
    hosts: Path | None = None
    name: str = "local"
    reported_network: str = "127."
    containers: ContainerHost | None = None
    pacer: StartPacer = msgspec.field(default_factory=StartPacer)
    virtual: VirtualNodes | None = None
    isolation: Isolation | None = None
    authority: str = ""
    proxy: Callable[[], QueueProxySettings] = QueueProxySettings
    scaling: Callable[[], AutoscalerSettings] = AutoscalerSettings
