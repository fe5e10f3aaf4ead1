import base64
from pathlib import Path

from serving.cluster.kinds import SECRET
from serving.controller.io.makekey import make_key, make_token
from serving.dashboard.main import read_token
from serving.home.store.memory import MemoryCluster
from serving.wire.tokens import KEY_BYTES, KEY_SECRET

SPACE = "knative-serving"


async def value_of(cluster: MemoryCluster, name: str, key: str) -> bytes:
    return base64.b64decode((await cluster.get(SECRET, SPACE, name))["data"][key])


async def test_a_key_is_made_once() -> None:
    cluster = MemoryCluster()
    assert await make_key(cluster, SPACE)
    key = await value_of(cluster, KEY_SECRET, "key")
    assert len(key) == KEY_BYTES
    assert not await make_key(cluster, SPACE)
    assert await value_of(cluster, KEY_SECRET, "key") == key
    await cluster.close()


async def test_a_token_is_one_that_the_dashboard_takes(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    assert await make_token(cluster, SPACE, "token")
    token = await value_of(cluster, "token", "token")
    (tmp_path / "token").write_bytes(token)
    assert read_token(str(tmp_path / "token")).encode() == token
    assert not await make_token(cluster, SPACE, "token")
    assert await value_of(cluster, "token", "token") == token
    await cluster.close()
