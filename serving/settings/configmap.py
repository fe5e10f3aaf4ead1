"""A ConfigMap that was read, from a file or from a cluster, with the place of each entry."""

import msgspec


class ConfigMapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a ConfigMap with its text and the place where it stands ("file:line")."""

    key: str
    text: str
    where: str


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True):
    """A named ConfigMap, the place where it begins, and its entries in order."""

    name: str
    where: str
    entries: tuple[ConfigMapEntry, ...]
