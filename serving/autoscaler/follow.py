"""Those who follow what is decided while it happens, as server-sent events.

Input: events as they come. Output: each to every follower whose filter lets it through, by a function that each brought.
Nothing is encoded while there are no followers. It does not know sockets: a follower whose socket is full says so by returning
False, and is dropped, because one that reads too slowly would take memory without end; it comes back by itself.
"""

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, urlsplit

import msgspec

from serving.model.knative import RevisionKey

Write = Callable[[bytes], bool]
"""Takes the bytes of an event; whether there was room."""


class FollowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a follower wants: one revision or, with None, all; and samples of each decision, or the log only."""

    key: RevisionKey | None = None
    namespace: str | None = None
    samples: bool = False

    def lets_through(self, event: str, key: RevisionKey) -> bool:
        """Whether an event about a revision is for it."""
        return (
            (self.samples or event != "sample")
            and self.key in {None, key}
            and (self.namespace is None or self.namespace == key[0])
        )


def asked(target: str) -> tuple[str, dict[str, str]]:
    """Path and query of a request's target. Of a name that comes twice, nothing is believed."""
    url = urlsplit(target)
    found = parse_qs(url.query, keep_blank_values=True)
    return url.path, {name: values[0] if len(values) == 1 else "" for name, values in found.items()}


def wish_of(names: Mapping[str, str]) -> FollowRequest:
    """The wish of a query: ``namespace``, ``revision`` and ``samples``, each if it is wanted."""
    namespace, revision = names.get("namespace"), names.get("revision")
    key = (namespace or "default", revision) if revision else None
    return FollowRequest(key=key, namespace=namespace, samples="samples" in names)


class Followers:
    """All of them."""

    __slots__ = ("_wishes",)

    def __init__(self) -> None:
        self._wishes: dict[Write, FollowRequest] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._wishes)

    def __repr__(self) -> str:
        """One line."""
        return f"Followers({len(self._wishes)})"

    @property
    def want_samples(self) -> bool:
        """Whether anybody wants each decision."""
        return any(wish.samples for wish in self._wishes.values())

    def add(self, wish: FollowRequest, write: Write) -> Callable[[], None]:
        """Add a follower; the returned function removes it."""
        self._wishes[write] = wish

        def end() -> None:
            self._wishes.pop(write, None)

        return end

    def tell(self, event: str, key: RevisionKey, body: bytes) -> None:
        """One event for all who want it."""
        data = event_bytes(event, body)
        for write, wish in list(self._wishes.items()):
            if wish.lets_through(event, key) and not write(data):
                self._wishes.pop(write, None)


def event_bytes(event: str, body: bytes) -> bytes:
    """One event on the wire; ``body`` is JSON without line ends."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), body)
