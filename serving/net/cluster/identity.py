"""The identity of this process in a cluster: its name and namespace for leases.

Environment: ``SERVING_POD_NAME``, by default the name of the machine, and ``SERVING_SYSTEM_NAMESPACE``, by default
knative-serving. The manifests of ``config/daemons`` set both.
"""

import os
import secrets
import socket
from collections.abc import Mapping

# Other programs have daemons of the same names, such as the Kubernetes Dashboard.
_MARK = "(serving.dev)"

SYSTEM_NAMESPACE = "knative-serving"
"""The default namespace of the system."""


def new_identity(environment: Mapping[str, str] = os.environ) -> str:
    """A unique identity, different after each restart of a pod's container: "controller-7d9c-x2x4q_6f1c0a9e"."""
    return f"{environment.get('SERVING_POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"


def system_namespace(environment: Mapping[str, str] = os.environ) -> str:
    """The namespace of the system, from the environment."""
    return environment.get("SERVING_SYSTEM_NAMESPACE") or SYSTEM_NAMESPACE


def user_agent(daemon: str, identity: str) -> str:
    """The User-Agent of a process, for audit logs; the daemon's name becomes the field manager of its writes."""
    return f"{daemon}/{identity} {_MARK}"


def is_daemon(agent: str) -> bool:
    """Whether a User-Agent is that of a daemon of this system, by ``user_agent``."""
    return agent.endswith(_MARK)
