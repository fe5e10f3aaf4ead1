"""All objects of one kind in memory: by key, in order, with their history and those who watch.

Everything is synchronous: a write is one step that readers and watches see whole. Lists are snapshots, because what they
hold is never changed.
"""

import base64
import binascii
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

import msgspec

from serving.cluster.history import Change, Filter, History
from serving.cluster.kinds import Kind
from serving.cluster.limits import StoreLimits
from serving.cluster.records import Key, Stored
from serving.cluster.watching import Watch
from serving.model.errors import Invalid

__all__ = ["Page", "Table", "page_of_token", "token_of_page"]

# Greater than any name: names are lower case letters, digits, '-' and '.'.
_BEHIND_ALL = "\U0010ffff"


class Page(msgspec.Struct, frozen=True):
    """Where a list goes on: after which object, and the version of the store when its first page was read."""

    version: int
    namespace: str
    name: str


def token_of_page(page: Page) -> str:
    """The text that stands for it in a query."""
    return base64.urlsafe_b64encode(msgspec.json.encode(page)).decode("ascii").rstrip("=")


def page_of_token(token: str) -> Page:
    """What ``token_of_page`` made a text of. Raises ``Invalid``."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=Page)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise Invalid(f"the continue token {token!r} is not one of this server's") from error


class Table:
    """The objects of one kind."""

    def __init__(self, kind: Kind, limits: StoreLimits, *, floor: int) -> None:
        self.kind = kind
        self.objects: dict[Key, Stored] = {}
        self.history = History(limits, floor=floor)
        self.watches: list[Watch] = []
        self._keys: list[Key] = []

    def __repr__(self) -> str:
        return f"Table({self.kind.resource}, {len(self.objects)} objects, {len(self.watches)} watches)"

    def load(self, one: Stored) -> None:
        """Take in an object of which nobody is told."""
        self.objects[one.key] = one
        insort(self._keys, one.key)

    def apply(self, change: Change) -> None:
        """Make a change and tell everybody."""
        key = change.new.key
        if change.is_removal:
            del self.objects[key]
            del self._keys[bisect_left(self._keys, key)]
        else:
            if key not in self.objects:
                insort(self._keys, key)
            self.objects[key] = change.new
        self.history.add(change)
        # A copy: a watch that has fallen behind takes itself out.
        for watch in tuple(self.watches):
            watch.offer(change)

    def select(self, wanted: Filter, *, after: Key | None = None) -> Iterator[Stored]:
        """All objects that a filter lets through, in order, from behind a key on. To be used before the next change."""
        name = wanted.fields.exact("metadata.name")
        if name is not None and wanted.namespace is not None:
            one = self.objects.get((wanted.namespace, name))
            found: Iterable[Stored] = () if one is None else (one,)
        else:
            first, behind = self._span(wanted.namespace)
            if after is not None:
                first = max(first, bisect_right(self._keys, after))
            found = (self.objects[key] for key in self._keys[first:behind])
        return (one for one in found if wanted.lets_through(one))

    def count(self, namespace: str | None) -> int:
        """How many objects a namespace has of this kind; None is all."""
        first, behind = self._span(namespace)
        return behind - first

    def _span(self, namespace: str | None) -> tuple[int, int]:
        """Where a namespace's keys begin, and where those behind them."""
        if namespace is None:
            return 0, len(self._keys)
        first = bisect_left(self._keys, (namespace, ""))
        return first, bisect_right(self._keys, (namespace, _BEHIND_ALL), lo=first)
