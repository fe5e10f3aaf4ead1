"""The one place where the daemon gets its cloud: which one is a setting.

Another cloud is one module beside this and one branch here. Libraries of clouds are extras, imported by the branch that needs
them.
"""

import contextlib
from collections.abc import AsyncIterator, Callable

from serving.cluster.identity import system_namespace
from serving.cluster.port import Cluster
from serving.nodegroup.cloud import Cloud
from serving.nodegroup.io.clouds.aws import AwsCloud
from serving.nodegroup.io.clouds.clusterapi import ClusterApiCloud
from serving.nodegroup.io.clouds.externalgrpc import opened_external_grpc
from serving.nodegroup.io.clouds.local import LocalCloud
from serving.nodegroup.io.clouds.memory import MemoryCloud
from serving.settings.nodegroup import NodeGroupDaemonSettings
from serving.settings.nodegroup_options import AwsOptions


@contextlib.asynccontextmanager
async def opened_cloud(
    settings: NodeGroupDaemonSettings,
    cluster: Cluster,
    *,
    aws_options: Callable[[str], AwsOptions] = lambda _: AwsOptions(),
) -> AsyncIterator[Cloud]:
    """The cloud of the settings while the context lasts. Raises ``SettingsError`` if its library is missing."""
    match settings.cloud_provider:
        case "aws":
            yield AwsCloud(settings, options=aws_options)
        case "cluster-api":
            yield ClusterApiCloud(cluster)
        case "external-grpc":
            async with opened_external_grpc(settings) as provider:
                yield provider
        case "local":
            yield LocalCloud(cluster, system_namespace())
        case _:
            yield MemoryCloud({})
