"""Grants of users: roles in namespaces."""

import enum

import msgspec


class Role(enum.StrEnum):
    """The role of a user: view may read, deploy may also change services, admin may do everything."""

    VIEW = "view"
    DEPLOY = "deploy"
    ADMIN = "admin"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A user's role in some namespaces; None means all namespaces."""

    user: str
    role: Role
    namespaces: frozenset[str] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the user is an admin in all namespaces."""
        return self.role is Role.ADMIN and self.namespaces is None

    @property
    def groups(self) -> list[str]:
        """The user's groups, named as a kube-apiserver names them."""
        return ["system:masters" if self.is_full else f"serving:{self.role}", "system:authenticated"]

    def may_read(self, key: str) -> bool:
        """Whether the user has a role in the namespace of a key ("namespace" or "namespace/name")."""
        return self.namespaces is None or key.partition("/")[0] in self.namespaces

    def may_act(self, key: str) -> bool:
        """Whether the user may change the services in the namespace of a key."""
        return self.role is not Role.VIEW and self.may_read(key)
