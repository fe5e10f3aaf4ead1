"""The one place where the daemon gets its cloud: which one is a setting.

Another cloud is one module beside this and one branch here. Libraries of clouds are extras, imported by the branch that needs
them.
"""

import contextlib
from collections.abc import AsyncIterator

from serving.cluster.identity import system_namespace
from serving.cluster.port import Cluster
from serving.model.errors import Problem, SettingsError
from serving.nodegroup.cloud import Cloud
from serving.nodegroup.io.clouds.local import LocalCloud
from serving.nodegroup.io.clouds.memory import MemoryCloud
from serving.settings.nodegroup_daemon import NodeGroupDaemonSettings

__all__ = ["opened_cloud"]


@contextlib.asynccontextmanager
async def opened_cloud(settings: NodeGroupDaemonSettings, cluster: Cluster) -> AsyncIterator[Cloud]:
    """The cloud of the settings while the context lasts. Raises ``SettingsError`` if its library is missing."""
    match settings.cloud_provider:
        case "local":
            yield LocalCloud(cluster, system_namespace())
        case "memory":
            yield MemoryCloud({})
        case other:
            problem = Problem(where="cloud-provider", what=f"{other} is not there yet", expected="memory")
            raise SettingsError([problem])
