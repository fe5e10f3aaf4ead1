import json
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.errors import SettingsError, Unavailable
from serving.home.state import kubeconfig
from serving.net.cluster.localserver import LocalServer, local_server
from serving.net.cluster.sessions import session_of
from serving.tools.cli.client.connection import connect

_TOKEN = "t"  # noqa: S105 - of a test
_URL = "https://127.0.0.1:6080"


def changed(**parts: Any) -> str:  # noqa: ANN401 - any JSON
    return json.dumps(json.loads(kubeconfig(_URL, _TOKEN)) | parts)


def test_kubeconfig_of_serving_up_names_local_server() -> None:
    assert local_server(kubeconfig(_URL, _TOKEN, authority="PEM", namespace="team")) == LocalServer(
        url=_URL, token=_TOKEN, authority="PEM", context="serving", namespace="team"
    )


def test_local_server_without_tls_has_no_authority() -> None:
    server = local_server(kubeconfig("http://127.0.0.1:6080", "t"))
    assert server is not None
    assert (server.url, server.authority, server.namespace) == ("http://127.0.0.1:6080", "", "default")


def test_empty_namespace_is_default() -> None:
    server = local_server(kubeconfig(_URL, _TOKEN, namespace=""))
    assert server is not None
    assert server.namespace == "default"


@pytest.mark.parametrize(
    "text",
    [
        "",
        b"\xff",
        "apiVersion: v1",
        "[]",
        changed(users=[]),
        changed(users=[{"user": {"token": 5}}]),
        changed(users=[{"user": {"token": "t", "client-key": "k"}}]),
        changed(users=[{"user": {"exec": {}}}]),
        changed(clusters=[{"cluster": {"server": _URL}}] * 2),
        changed(clusters=[{"cluster": {"server": "https://10.0.0.1:6443"}}]),
        changed(clusters=[{"cluster": {"server": _URL, "insecure-skip-tls-verify": True}}]),
        changed(clusters=[{"cluster": {"server": _URL, "certificate-authority-data": "?"}}]),
        changed(clusters=[{"cluster": {"server": _URL, "certificate-authority-data": "/w=="}}]),
        kubeconfig("https://127.0.0.1.example.com:6080", "t"),
    ],
)
def test_other_kubeconfig_names_no_local_server(text: str | bytes) -> None:
    assert local_server(text) is None


async def test_other_server_without_kubernetes_package_reports_cluster_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [module for module in sys.modules if module.partition(".")[0] == "kubernetes"]:
        monkeypatch.delitem(sys.modules, name)
    # As for a package that is not installed.
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(Unavailable, match=r"pip install 'serving\[cluster\]'"):
        await session_of(str(path))
    with pytest.raises(SettingsError, match=r"pip install 'serving\[cluster\]'"):
        connect(str(path))
