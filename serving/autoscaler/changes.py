"""Changes of scale as Events of the API, on the Revision; and how many of them there may be.

Input: a revision, a sentence, a time. Output: a core/v1 Event, or nothing when that revision had its share: each has a few
at once and one more each half minute, so that a scale that swings does not fill the API with Events. The first Event after
some were left out says how many.
"""

from typing import Any

import msgspec

from serving.model.event import About, Words, new_event
from serving.model.knative import SERVING_API_VERSION
from serving.scaling.revision import ScaledRevision

_COMPONENT = "serving-autoscaler"
_BURST = 5
_REFILL_S = 30.0
# A revision's Events take each other's place after so many: a store of one machine keeps what it has.
_NUMBERS = 20


class EventPermit(msgspec.Struct, frozen=True, kw_only=True):
    """Leave to say something: the number of the Event, and how many changes before it were left out."""

    number: int
    left_out_count: int


class _Purse(msgspec.Struct, frozen=True, kw_only=True):
    tokens: float
    at_s: float
    number: int = 0
    left_out_count: int = 0


class EventBudget:
    """What each revision may still say."""

    __slots__ = ("_purses",)

    def __init__(self) -> None:
        self._purses: dict[str, _Purse] = {}

    def __repr__(self) -> str:
        """One line."""
        return f"EventBudget({len(self._purses)} revisions)"

    def take(self, uid: str, now_s: float) -> EventPermit | None:
        """Leave for a revision to say something now; None if it said too much of late."""
        purse = self._purses.get(uid) or _Purse(tokens=_BURST, at_s=now_s)
        tokens = min(_BURST, purse.tokens + (now_s - purse.at_s) / _REFILL_S)
        if tokens < 1:
            left_out_count = purse.left_out_count + 1
            self._purses[uid] = msgspec.structs.replace(purse, tokens=tokens, at_s=now_s, left_out_count=left_out_count)
            return None
        number = (purse.number + 1) % _NUMBERS
        self._purses[uid] = _Purse(tokens=tokens - 1, at_s=now_s, number=number)
        return EventPermit(number=purse.number, left_out_count=purse.left_out_count)

    def forget(self, uid: str) -> None:
        """A revision is gone."""
        self._purses.pop(uid, None)


def scale_event(revision: ScaledRevision, sentence: str, *, leave: EventPermit, now: str) -> dict[str, Any]:
    """The Event of one change; ``now`` is the time as the API writes it."""
    namespace, name = revision.key
    of = About(
        api_version=SERVING_API_VERSION,
        kind="Revision",
        namespace=namespace,
        name=name,
        uid=revision.uid,
        resource_version=revision.resource_version,
    )
    more = f" (changes left out before it: {leave.left_out_count})" if leave.left_out_count else ""
    words = Words(reason="Scaled", message=f"{sentence}{more}")
    return new_event(of, words, suffix=f"scaled-{leave.number}", component=_COMPONENT, now=now)
