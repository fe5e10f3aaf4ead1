"""The kubeconfig that names this server, for kubectl and for the kube adapter.

Standard library only: the supervisor writes it before anything else is imported. The token stands twice: as a bearer token, and in the server's path, because client-go sends no bearer token without TLS.
So the file is a secret (0600), as every kubeconfig is.
"""

import json

__all__ = ["TOKEN_ROOT", "kubeconfig"]

# Below it the first part of a path is the token.
TOKEN_ROOT = "/token"  # noqa: S105 - a path


def kubeconfig(url: str, token: str, *, namespace: str = "default") -> str:
    """The text of the file, JSON, which is YAML. ``url`` is "http://127.0.0.1:6080", the token of URL-safe letters."""
    if not token.replace("-", "").replace("_", "").isalnum() or not token.isascii():
        raise ValueError("the token must be of letters, digits, '-' and '_': it stands in a path")
    name = "serving"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"{url.rstrip('/')}{TOKEN_ROOT}/{token}"}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }
    return json.dumps(content, indent=2) + "\n"
