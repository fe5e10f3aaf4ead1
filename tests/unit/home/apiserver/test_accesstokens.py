"""Access tokens of users: creation, storage as Secrets, and authentication."""

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object
from serving.home.admission.admission import admit
from serving.home.apiserver.accesstokens import Authenticator, Unauthorized, new_token, read_token
from serving.home.apiserver.roles import FULL_GRANT
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import SECRET

ADMIN_TOKEN = "state-folder"  # noqa: S105 - not a real token
ANN = Grant(user="ann", role=Role.DEPLOY, namespaces=frozenset({"a", "b"}))


async def store_with(*secrets: Object) -> MemoryCluster:
    cluster = MemoryCluster(admit=admit)
    for secret in secrets:
        await cluster.create(SECRET, secret)
    return cluster


def refused(cluster: MemoryCluster, header: str, *, now_s: float = 0.0) -> str:
    with pytest.raises(Unauthorized, match=r"^Unauthorized$") as caught:
        Authenticator(cluster, ADMIN_TOKEN).authenticate(header, now_s=now_s)
    assert caught.value.code == 401
    return caught.value.reason


async def test_token_authenticates_its_user_until_expiry() -> None:
    text, secret = new_token(ANN, until_s=100.0)
    cluster = await store_with(secret)
    assert Authenticator(cluster, ADMIN_TOKEN).authenticate(f"Bearer {text}", now_s=99.0) == ANN
    assert refused(cluster, f"Bearer {text}", now_s=100.0) == "the token ann has expired"


async def test_cluster_wide_grant_is_read_from_its_secret() -> None:
    everywhere = Grant(user="op", role=Role.ADMIN)
    text, secret = new_token(everywhere, until_s=100.0)
    assert (
        Authenticator(await store_with(secret), ADMIN_TOKEN).authenticate(f"bearer  {text} ", now_s=1.0) == everywhere
    )


@pytest.mark.parametrize("namespace", ["*", "a,b", "a b", "A", ""])
def test_invalid_namespace_names_in_a_grant_are_rejected(namespace: str) -> None:
    """A star or a comma would extend the stored list of namespaces."""
    with pytest.raises(InvalidValue, match="the name of a namespace"):
        new_token(Grant(user="op", role=Role.VIEW, namespaces=frozenset({namespace})), until_s=100.0)


async def test_deleted_token_is_rejected() -> None:
    text, secret = new_token(ANN, until_s=100.0)
    cluster = await store_with(secret)
    await cluster.delete(SECRET, system_namespace(), "access-token-ann")
    assert refused(cluster, f"Bearer {text}") == "unknown token"


def test_secret_stores_only_a_hash_of_the_token() -> None:
    text, secret = new_token(ANN, until_s=100.0)
    assert text.partition(".")[2] not in msgspec.json.encode(secret).decode()
    assert text != new_token(ANN, until_s=100.0)[0]


async def test_admin_token_has_full_grant() -> None:
    authenticator = Authenticator(await store_with(), ADMIN_TOKEN)
    assert authenticator.authenticate(f"Bearer {ADMIN_TOKEN}", now_s=1.0) is FULL_GRANT


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer .", "Bearer ann", "Bearer ann.", "Bearer ann.x", "Basic ann.x", "Bearer ann.gehëim"],
)
async def test_missing_or_invalid_bearer_token_is_rejected(header: str) -> None:
    _, secret = new_token(ANN, until_s=100.0)
    assert refused(await store_with(secret), header) in {"unknown token", "no bearer token"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"role": "root"}, "'root' is not a valid Role"),
        ({"expires": "never"}, "Invalid isoformat string: 'never'"),
        ({"namespaces": None}, "access-token-ann: 'namespaces' is missing"),
        ({"sha256": None}, "access-token-ann: 'sha256' is missing"),
    ],
)
async def test_malformed_token_secret_is_rejected(change: dict[str, str | None], reason: str) -> None:
    text, secret = new_token(ANN, until_s=100.0)
    data = {key: value for key, value in (secret["stringData"] | change).items() if value is not None}
    assert refused(await store_with({**secret, "stringData": data}), f"Bearer {text}") == reason


async def test_secret_of_another_type_is_rejected() -> None:
    text, secret = new_token(ANN, until_s=100.0)
    assert "not an access token" in refused(await store_with({**secret, "type": "Opaque"}), f"Bearer {text}")
    with pytest.raises(ValueError, match="not an access token"):
        read_token({**secret, "metadata": {"name": "ann"}})


@pytest.mark.parametrize("name", ["", "Ann", "a b", "-a", "a" * 41, "serving-admin", "a.b", "system:x"])
def test_invalid_user_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidValue, match="1 to 40"):
        new_token(Grant(user=name, role=Role.VIEW), until_s=1.0)


def test_system_namespace_is_not_granted_to_writers() -> None:
    system = frozenset({system_namespace()})
    for role in (Role.DEPLOY, Role.ADMIN):
        with pytest.raises(InvalidValue, match="admin of all namespaces"):
            new_token(Grant(user="ann", role=role, namespaces=system), until_s=1.0)
    assert new_token(Grant(user="ann", role=Role.VIEW, namespaces=system), until_s=1.0)
