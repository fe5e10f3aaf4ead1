"""Grants: the namespaces that a user may read and change."""

import pytest

from serving.core.model.grants import Grant, Role

SHOP = frozenset({"shop"})


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("namespaces", [None, SHOP, frozenset()])
def test_user_reads_its_namespaces_and_acts_there_unless_role_is_view(
    role: Role, namespaces: frozenset[str] | None
) -> None:
    grant = Grant(user="ann", role=role, namespaces=namespaces)
    for key, namespace in (("shop", "shop"), ("shop/x", "shop"), ("shopping/x", "shopping"), ("", ""), ("/shop", "")):
        sees = namespaces is None or namespace in namespaces
        assert grant.may_read(key) is sees
        assert grant.may_act(key) is (sees and role is not Role.VIEW)
    assert grant.is_full is (role is Role.ADMIN and namespaces is None)
    assert grant.groups[0] == ("system:masters" if grant.is_full else f"serving:{role}")
