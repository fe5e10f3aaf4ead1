"""Grants of users: roles in namespaces."""

import enum

import msgspec


class Role(enum.StrEnum):
    """The roles."""

    VIEW = "view"
    DEPLOY = "deploy"
    ADMIN = "admin"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A user, its role, and the namespaces in which it has it; None is all of them."""

    user: str
    role: Role
    namespaces: frozenset[str] | None = None

    @property
    def is_full(self) -> bool:
        """Whether it grants everything."""
        return self.role is Role.ADMIN and self.namespaces is None

    @property
    def groups(self) -> list[str]:
        """The user's groups, named as by a kube-apiserver."""
        return ["system:masters" if self.is_full else f"serving:{self.role}", "system:authenticated"]

    def may_read(self, key: str) -> bool:
        """Whether the user has a role in the namespace of a key: "namespace" or "namespace/name"."""
        return self.namespaces is None or key.partition("/")[0] in self.namespaces

    def may_act(self, key: str) -> bool:
        """Whether the user may change the services of that namespace."""
        return self.role is not Role.VIEW and self.may_read(key)
