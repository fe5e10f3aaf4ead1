"""The objects of one kind in memory: by key, in order, with their history and their watches.

A table is synchronous: for readers and watches a write is one step. Lists are snapshots, because a stored object never
changes. Objects are sorted as etcd's keys, NAMESPACE/NAME as one text. So namespace "a-b" precedes "a", because "-"
sorts before "/". Continue tokens have the form of a kube-apiserver's.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

import msgspec

from serving.core.model.base64url import decode_base64url, encode_base64url
from serving.core.model.errors import Invalid
from serving.core.model.objects import Key
from serving.home.schemas.records import Stored
from serving.home.store.history import History, ObjectFilter, StoreChange, StoreLimits, Watch
from serving.net.cluster.kinds import Kind

# Sorts directly after "/", so that it ends the range of a namespace's keys.
_BEHIND_SLASH = "0"
_TOKEN_VERSION = "meta.k8s.io/v1"  # noqa: S105 - of a token's form


class ListPage(msgspec.Struct, frozen=True):
    """Where the next page of a list begins: after the key ``after``, at the resource version of the first page."""

    version: int
    after: str


class _Token(msgspec.Struct, frozen=True):
    """The content of a continue token: its format, the resource version, and the first possible key of the next page.

    ``start``, this key, is the last key of the page and a zero byte.
    """

    v: str
    rv: int
    start: str


def path_of(key: Key) -> str:
    """The key that etcd would have for an object. Lists are sorted by it."""
    return f"{key[0]}/{key[1]}" if key[0] else key[1]


def token_of_page(page: ListPage) -> str:
    """Encode a page as a continue token."""
    token = _Token(v=_TOKEN_VERSION, rv=page.version, start=page.after + "\0")
    return encode_base64url(msgspec.json.encode(token))


def page_of_token(token: str) -> ListPage:
    """Decode a continue token. Raises ``Invalid``."""
    try:
        fields = msgspec.json.decode(decode_base64url(token), type=_Token)
    except ValueError as error:
        raise Invalid(f"the continue token {token!r} is not valid: {error}") from error
    if fields.v != _TOKEN_VERSION:
        raise Invalid(f"the continue token {token!r} is not valid: its version is {fields.v!r}, not {_TOKEN_VERSION!r}")
    return ListPage(fields.rv, fields.start.removesuffix("\0"))


class KindTable:
    """The objects of one kind."""

    def __init__(self, kind: Kind, limits: StoreLimits, *, floor: int) -> None:
        self.kind = kind
        self.objects: dict[Key, Stored] = {}
        self.history = History(limits, floor=floor)
        self.watches: list[Watch] = []
        # The keys of all objects, in etcd's order.
        self._paths: list[str] = []
        self._keys: dict[str, Key] = {}

    def load(self, entry: Stored) -> None:
        """Add an object that was read at the start, without an event."""
        self.objects[entry.key] = entry
        self._insert(entry.key)

    def apply(self, change: StoreChange) -> None:
        """Apply a change and offer it to every watch."""
        key = change.new.key
        if change.is_removal:
            del self.objects[key]
            path = path_of(key)
            del self._keys[path]
            del self._paths[bisect_left(self._paths, path)]
        else:
            if key not in self.objects:
                self._insert(key)
            self.objects[key] = change.new
        self.history.add(change)
        # A copy, because a watch that has fallen behind removes itself.
        for watch in tuple(self.watches):
            watch.offer(change)

    def select(self, wanted: ObjectFilter, *, after: str | None = None) -> Iterator[Stored]:
        """Yield the objects that match a filter, sorted by path; with ``after``, only those with a greater path.

        The iterator is valid until the next change.
        """
        name = wanted.fields.exact("metadata.name")
        if name is not None and wanted.namespace is not None:
            entry = self.objects.get((wanted.namespace, name))
            entries: Iterable[Stored] = () if entry is None else (entry,)
        else:
            first, behind = self._span(wanted.namespace)
            if after is not None:
                first = max(first, bisect_right(self._paths, after))
            entries = (self.objects[self._keys[path]] for path in self._paths[first:behind])
        return (entry for entry in entries if wanted.lets_through(entry))

    def _insert(self, key: Key) -> None:
        path = path_of(key)
        self._keys[path] = key
        insort(self._paths, path)

    def _span(self, namespace: str | None) -> tuple[int, int]:
        """The range of a namespace's keys in the sorted list, as (first, end)."""
        if namespace is None:
            return 0, len(self._paths)
        first = bisect_left(self._paths, f"{namespace}/")
        return first, bisect_left(self._paths, namespace + _BEHIND_SLASH, lo=first)
