from pathlib import Path

import pytest

from serving.core.model.errors import Unavailable
from serving.net.cluster.localserver import TokenServer
from serving.net.cluster.podserver import pod_server

ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The volume of a service account."""
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("PEM")
    return tmp_path


def test_pod_server_has_url_token_and_authority(account: Path) -> None:
    server = pod_server(ENVIRONMENT, account)
    assert server == TokenServer(url="https://10.96.0.1:443", token="first", authority="PEM")  # noqa: S106 - of a test


def test_ipv6_server_address_is_in_brackets(account: Path) -> None:
    assert pod_server({**ENVIRONMENT, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account).url == "https://[fd00::1]:443"


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_missing_pod_environment_variable_is_reported(account: Path, name: str) -> None:
    with pytest.raises(Unavailable, match=f"no usable kubeconfig in this pod: .*{name}"):
        pod_server({**ENVIRONMENT, name: ""}, account)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"])
@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_empty_or_unreadable_account_file_is_reported(account: Path, name: str, content: bytes | None) -> None:
    (account / name).unlink()
    if content is not None:
        (account / name).write_bytes(content)
    with pytest.raises(Unavailable, match=f"no usable kubeconfig in this pod: .*{name}"):
        pod_server(ENVIRONMENT, account)
