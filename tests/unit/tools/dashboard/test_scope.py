"""The filter of responses, and the users of a proxy."""

from typing import Any

import pytest

from serving.core.model.errors import SettingsError
from serving.core.model.grants import Grant, Role
from serving.tools.dashboard.scope import NO_NODES, read_users, reviewed_grant, visible

SHOP = Grant(user="ann", role=Role.VIEW, namespaces=frozenset({"shop"}))


def test_response_part_without_a_rule_is_removed() -> None:
    body: dict[str, Any] = {"columns": ["a"], "nodes": {"lines": ["n"]}, "secrets": [1]}
    assert visible(body, SHOP) == {"columns": ["a"], "nodes": NO_NODES}
    assert visible(body, Grant(user="", role=Role.VIEW)) is body


def test_items_of_other_or_missing_namespaces_are_removed() -> None:
    body: dict[str, Any] = {
        "rows": {"shop/a": [1], "team/b": [2], "shop": [3]},
        "pods": [{"namespace": "shop"}, {"namespace": "team"}, {}],
        "decisions": [{"key": "shop/a"}, {"key": "team/b"}],
        "decision": {"key": "team/b"},
    }
    assert visible(body, SHOP) == {
        "rows": {"shop/a": [1], "shop": [3]},
        "pods": [{"namespace": "shop"}],
        "decisions": [{"key": "shop/a"}],
        "decision": None,
    }


def test_proxy_users_are_parsed_with_roles_and_namespaces() -> None:
    assert read_users("") == {}
    users = read_users("ann=view:shop+team, bob@example.com=deploy:*,")
    assert users["ann"] == Grant(user="ann", role=Role.VIEW, namespaces=frozenset({"shop", "team"}))
    assert users["bob@example.com"] == Grant(user="bob@example.com", role=Role.DEPLOY)


@pytest.mark.parametrize(
    "text", ["ann", "ann=view", "ann=view:", "ann=owner:shop", "=view:shop", "a=view:x, a=admin:*"]
)
def test_invalid_proxy_users_are_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match=r"proxy-users.*USER=ROLE:NAMESPACE"):
        read_users(text)


def test_token_review_with_exactly_one_role_yields_a_grant() -> None:
    def reviewed(**status: object) -> Grant | None:
        return reviewed_grant({"status": status})

    def user(role: list[str], namespaces: list[str]) -> dict[str, Any]:
        return {"username": "ann", "extra": {"serving.dev/role": role, "serving.dev/namespaces": namespaces}}

    assert reviewed(authenticated=True, user=user(["view"], ["shop"])) == SHOP
    assert reviewed(authenticated=True, user=user(["admin"], ["*"])) == Grant(user="ann", role=Role.ADMIN)
    # An empty list means no namespaces, not all.
    assert reviewed(authenticated=True, user=user(["view"], [])) == Grant(
        user="ann", role=Role.VIEW, namespaces=frozenset()
    )
    assert reviewed(authenticated=False, user=user(["view"], ["*"])) is None
    assert reviewed(authenticated=True, user={"username": "system:serviceaccount:a:b"}) is None
    assert reviewed(authenticated=True, user=user(["owner"], ["*"])) is None
    assert reviewed(authenticated=True, user=user(["view", "admin"], ["*"])) is None
    assert reviewed_grant({}) is None
