"""The kubeconfig that names this server, for kubectl and for the kube adapter.

Standard library only: the supervisor writes it before anything else is imported. The file has the token, so it is a secret
(0600), as every kubeconfig is. client-go sends a token over TLS only, so kubectl needs a URL with https and its authority.
"""

import base64
import json


def kubeconfig(url: str, token: str, *, authority: str = "", namespace: str = "default") -> str:
    """The text of the file, JSON, which is YAML.

    ``url`` is "https://127.0.0.1:6080", ``authority`` the certificate, in PEM, that signs the server's.
    """
    name = "serving"
    trusted = {"certificate-authority-data": base64.b64encode(authority.encode()).decode()} if authority else {}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url.rstrip("/"), **trusted}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }
    return json.dumps(content, indent=2) + "\n"
