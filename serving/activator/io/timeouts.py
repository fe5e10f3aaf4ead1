"""The timeouts of each revision's requests, as ``serving.proxy`` takes them."""

import math
from collections.abc import Callable

from serving.activator.queueing.revisions import ServedRevision
from serving.model.knative import RevisionKey
from serving.proxy.forwarding.timeouts import Timeouts

_TEXT = b"activator request timeout"
# About 2 MB, whatever came and went. A record is made again in microseconds.
_KNOWN_MAX = 2_048


class RevisionTimeouts:
    """Makes the record of a revision once. ``unknown_s`` is the total of a revision that is not known yet."""

    def __init__(self, revision: Callable[[RevisionKey], ServedRevision | None], *, unknown_s: float) -> None:
        self._revision = revision
        self._unknown = Timeouts(total_s=unknown_s, text=_TEXT)
        self._known: dict[RevisionKey, tuple[ServedRevision, Timeouts]] = {}

    def of(self, key: RevisionKey) -> Timeouts:
        """The timeouts of a request for a revision."""
        revision = self._revision(key)
        if revision is None:
            return self._unknown
        known = self._known.get(key)
        if known is not None and known[0] is revision:
            return known[1]
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        timeouts = Timeouts(
            total_s=revision.timeout_s,
            answer_start_s=math.inf if revision.response_start_timeout_s is None else revision.response_start_timeout_s,
            idle_s=math.inf if revision.idle_timeout_s is None else revision.idle_timeout_s,
            text=_TEXT,
        )
        self._known[key] = (revision, timeouts)
        return timeouts
