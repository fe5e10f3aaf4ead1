"""The one place where a daemon gets its cluster: which one is a matter of the environment.

A second kind of cluster is another adapter of the port (``port.py``) and one more branch here.
"""

import os
from collections.abc import Mapping

from serving.cluster.identity import new_identity, user_agent
from serving.cluster.kube import KubeCluster

_KUBECONFIG_VARIABLE = "KUBECONFIG"


def connect(daemon: str, *, identity: str = "", environment: Mapping[str, str] = os.environ) -> KubeCluster:
    """The cluster of KUBECONFIG; without it the one that this pod runs in, by its service account. Cheap; no call is made.

    ``daemon`` and ``identity`` say in the server's audit log who writes. Use the result as a context, or close it.
    """
    return KubeCluster(environment.get(_KUBECONFIG_VARIABLE), user_agent=user_agent(daemon, identity or new_identity()))
