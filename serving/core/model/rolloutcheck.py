"""Reads the conditions of a gradual rollout, such as "errors<1%,p99<500ms".

``ROLLOUT_CHECK_ANNOTATION`` of a Service or Route has them. A revision that breaks a condition during its rollout is
rolled back.
"""

import functools
import re

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.slo import SLO_FORM, Slo, read_slo

ROLLED_BACK_REASON = "RolledBack"
"""The reason of the condition Ready and of the Event when the newest revision was rolled back."""

_ERRORS = re.compile(r"errors\s*<\s*(100|[0-9]{1,2}(?:\.[0-9]{1,3})?)%", re.ASCII)
CHECK_FORM = rf"\s*({_ERRORS.pattern}|{SLO_FORM})\s*(,\s*({_ERRORS.pattern}|{SLO_FORM})\s*)*"
"""The form of the annotation; the ranges of its times are checked separately."""
_PERCENT = 100.0
_CONDITIONS_MAX = 8
_EXPECTED = (
    'up to 8 conditions with commas between them: "errors<1%" of the responses, or a latency as in "p99<500ms", '
    "each measure once"
)


class RolloutCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a rollout step: a largest share of 5xx responses (None: no limit), and latency goals."""

    text: str
    error_share: float | None = None
    latencies: tuple[Slo, ...] = ()


class RolloutWatch(msgspec.Struct, frozen=True, kw_only=True):
    """The newest revisions of a Route whose rollout is checked.

    A step waits for enough responses, at most ``wait_max_s`` seconds after its first check.
    """

    check: RolloutCheck
    revisions: tuple[str, ...]
    wait_max_s: float


class BrokenCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The reason that a revision was rolled back, and the broken check."""

    check: str
    why: str


@functools.lru_cache(256)
def read_rollout_check(text: str) -> RolloutCheck:
    """Parse the conditions in an annotation. Raises ``InvalidValue``."""
    error_share: float | None = None
    latencies: dict[str, Slo] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        match = _ERRORS.fullmatch(part)
        if match is not None and error_share is None:
            error_share = float(match[1]) / _PERCENT
            continue
        try:
            goal = read_slo(part)
        except InvalidValue as error:
            raise InvalidValue(text=text, expected=_EXPECTED) from error
        if goal.is_wait or goal.name in latencies:
            raise InvalidValue(text=text, expected=_EXPECTED)
        latencies[goal.name] = goal
    if len(parts) > _CONDITIONS_MAX:
        raise InvalidValue(text=text, expected=_EXPECTED)
    return RolloutCheck(text=text, error_share=error_share, latencies=tuple(latencies.values()))


def read_broken(text: str) -> dict[str, BrokenCheck]:
    """Read the rolled-back revisions from ``ROLLED_BACK_ANNOTATION``; none if it is invalid."""
    try:
        return msgspec.json.decode(text, type=dict[str, BrokenCheck]) if text else {}
    except UNREADABLE:
        return {}
