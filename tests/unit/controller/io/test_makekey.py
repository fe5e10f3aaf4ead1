import base64
from pathlib import Path

import pytest

from serving.controller.io.makekey import AUTHORITY_SECRET, cluster_key, make_tokens, write_authority
from serving.core.model.errors import SettingsError
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import SECRET
from serving.net.metrics.queries import QUERY_TOKEN_SECRET
from serving.net.wire.tokens import KEY_BYTES, KEY_SECRET
from serving.tools.dashboard.main import read_token

SPACE = "knative-serving"


async def value_of(cluster: MemoryCluster, name: str, key: str) -> bytes:
    return base64.b64decode((await cluster.get(SECRET, SPACE, name))["data"][key])


async def test_cluster_key_is_created_once_and_then_read() -> None:
    cluster = MemoryCluster()
    new_cluster_key = await cluster_key(cluster, SPACE)
    assert (len(new_cluster_key.key), new_cluster_key.inner_tls) == (KEY_BYTES, "Enabled")
    assert await value_of(cluster, KEY_SECRET, "key") == new_cluster_key.key
    assert await cluster_key(cluster, SPACE) == new_cluster_key
    await cluster.close()


async def test_older_key_secret_has_no_inner_tls_mode() -> None:
    cluster = MemoryCluster()
    data = {"key": base64.b64encode(bytes(KEY_BYTES)).decode()}
    await cluster.create(SECRET, {"metadata": {"name": KEY_SECRET, "namespace": SPACE}, "data": data})
    assert (await cluster_key(cluster, SPACE)).inner_tls == ""
    await cluster.close()


async def test_authority_secret_is_created_and_updated() -> None:
    cluster = MemoryCluster()
    for text in ("one", "one", "two"):
        await write_authority(cluster, SPACE, text)
        assert await value_of(cluster, AUTHORITY_SECRET, "ca.crt") == text.encode()
    await cluster.close()


@pytest.mark.parametrize("data", [{}, {"key": "c2hvcnQ="}, {"key": "no base64!"}])
async def test_secret_without_valid_key_is_rejected_and_unchanged(data: dict[str, str]) -> None:
    cluster = MemoryCluster()
    await cluster.create(SECRET, {"metadata": {"name": KEY_SECRET, "namespace": SPACE}, "data": data})
    with pytest.raises(SettingsError, match=r"Secret knative-serving/serving-key: key has . bytes; expected 32 bytes"):
        await cluster_key(cluster, SPACE)
    assert ((await cluster.get(SECRET, SPACE, KEY_SECRET)).get("data") or {}) == data
    await cluster.close()


async def test_tokens_are_created_once_and_readable_by_dashboard(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    await make_tokens(cluster, SPACE, actions="token")
    token = await value_of(cluster, "token", "token")
    (tmp_path / "token").write_bytes(token)
    assert read_token(str(tmp_path / "token")).encode() == token
    queries = await value_of(cluster, QUERY_TOKEN_SECRET, "token")
    await make_tokens(cluster, SPACE, actions="token")
    assert (await value_of(cluster, "token", "token"), await value_of(cluster, QUERY_TOKEN_SECRET, "token")) == (
        token,
        queries,
    )
    await cluster.close()
