"""The registry of clouds. Their libraries are extras, imported with the cloud."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec

from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.core.settings.nodegroup_options import AwsOptions
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.port import Cluster
from serving.nodes.nodegroup.cloud import Cloud
from serving.nodes.nodegroup.io.clouds.aws import opened_aws
from serving.nodes.nodegroup.io.clouds.clusterapi import ClusterApiCloud
from serving.nodes.nodegroup.io.clouds.externalgrpc import opened_external_grpc
from serving.nodes.nodegroup.io.clouds.local import LocalCloud
from serving.nodes.nodegroup.io.clouds.memory import MemoryCloud


class CloudContext(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a cloud. ``aws_options`` returns a group's options by its name."""

    settings: NodeGroupDaemonSettings
    cluster: Cluster
    aws_options: Callable[[str], AwsOptions] = lambda _: AwsOptions()


CLOUDS: Mapping[str, Callable[[CloudContext], AbstractAsyncContextManager[Cloud]]] = {
    "aws": lambda context: opened_aws(context.settings, options=context.aws_options),
    "cluster-api": lambda context: nullcontext(ClusterApiCloud(context.cluster)),
    "external-grpc": lambda context: opened_external_grpc(context.settings),
    "local": lambda context: nullcontext(LocalCloud(context.cluster, system_namespace())),
    "memory": lambda _: nullcontext(MemoryCloud({})),
}
"""The clouds by value of ``cloud_provider``. ``tests/conformance/cloud`` runs over all of them."""


def opened_cloud(context: CloudContext) -> AbstractAsyncContextManager[Cloud]:
    """The configured cloud, as a context. Raises ``SettingsError`` if a required library is missing."""
    return CLOUDS[context.settings.cloud_provider](context)
