"""The API server of a pod: its address from the environment, its authority and token from the service account."""

from collections.abc import Mapping
from pathlib import Path

from serving.core.model.errors import Unavailable
from serving.net.cluster.localserver import TokenServer

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts the volume of a pod's service account."""

HOST_VARIABLE, PORT_VARIABLE = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def pod_server(environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> TokenServer:
    """This pod's API server with the current token. Raises ``Unavailable`` outside of a pod."""
    host, port = environment.get(HOST_VARIABLE, ""), environment.get(PORT_VARIABLE, "")
    if not host or not port:
        raise _unusable(f"{HOST_VARIABLE} and {PORT_VARIABLE} are not set")
    texts: dict[str, str] = {}
    for name in ("token", "ca.crt"):
        try:
            texts[name] = (account / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(f"{account / name}: {error}") from error
        if not texts[name]:
            raise _unusable(f"{account / name} is empty")
    address = f"[{host}]" if ":" in host else host
    return TokenServer(url=f"https://{address}:{port}", token=texts["token"], authority=texts["ca.crt"])


def _unusable(why: str) -> Unavailable:
    return Unavailable(f"no usable kubeconfig in this pod: {why}")
