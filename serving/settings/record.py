"""What the settings records of all daemons have in common, and how fields contradict each other."""

from collections.abc import Iterator

import msgspec


class Clash(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of one record that are right alone and wrong together; the first is the one to mend."""

    fields: tuple[str, ...]
    what: str
    expected: str


class SettingsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the settings of all daemons have in common."""

    def check(self) -> Iterator[Clash]:
        """All contradictions between fields."""
        yield from ()
