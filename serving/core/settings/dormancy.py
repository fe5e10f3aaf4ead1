"""Parses dormancy settings: when pods become dormant, the app's own sleep calls, and memory limits.

``read_dormant`` and ``read_calls`` turn text into records. The records go to the policy, which prices dormant pods, and
to the queue-proxy, which freezes its app.
"""

from typing import Annotated

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.quantity import format_duration_s, parse_duration_s
from serving.core.settings.knob import TEXT, Knob, SettingsRecord, Unit

NEVER = "never"
_ONLY = "only"
_AFTER = "after="
AFTER_DEFAULT_S = 10.0
"""Default idle time before an app is frozen, in seconds."""
# Shorter times would freeze an app between two requests of a page.
_AFTER_MIN_S = 0.1
_AFTER_MAX_S = 86400.0
_EXPECTED = '"never", "only", "after=10s" or "only,after=10s", with a time from 100ms to 24h'
_CALLS = 'two calls, as in "POST /sleep?level=1, POST /wake_up"'
_METHODS = frozenset({"GET", "POST", "PUT"})
_WORD = rf"\s*({_ONLY}|{_AFTER}[^,]+)\s*"
_DORMANT_FORM = rf"{NEVER}|{_WORD}(,{_WORD})?"
_CALL = rf"\s*({'|'.join(sorted(_METHODS))}) /[!-+\--~]*\s*"
# Visible ASCII characters.
_TARGET_CODES = range(0x21, 0x7F)


class DormantMode(msgspec.Struct, frozen=True, kw_only=True):
    """When a pod becomes dormant.

    ``after_s`` is the idle time before the pod's app is frozen, in seconds; None: never. ``is_only``: an idle revision
    keeps one dormant pod and does not go to zero.
    """

    after_s: float | None = None
    is_only: bool = False


def read_dormant(text: str) -> DormantMode:
    """Parse a dormancy mode. Raises ``InvalidValue``."""
    if text == NEVER:
        return DormantMode()
    words = [word.strip() for word in text.split(",")]
    afters = [word.removeprefix(_AFTER) for word in words if word.startswith(_AFTER)]
    is_only = _ONLY in words
    if len(afters) + is_only != len(words) or len(afters) > 1:
        raise InvalidValue(text=text, expected=_EXPECTED)
    if not afters:
        return DormantMode(after_s=AFTER_DEFAULT_S, is_only=True)
    try:
        after_s = parse_duration_s(afters[0])
    except InvalidValue as error:
        raise InvalidValue(text=text, expected=_EXPECTED) from error
    if not _AFTER_MIN_S <= after_s <= _AFTER_MAX_S:
        raise InvalidValue(text=text, expected=_EXPECTED)
    return DormantMode(after_s=after_s, is_only=is_only)


def written(mode: DormantMode) -> str:
    """The mode as text, as input for ``read_dormant``."""
    if mode.after_s is None:
        return NEVER
    return f"{_ONLY + ',' if mode.is_only else ''}{_AFTER}{format_duration_s(mode.after_s)}"


class MemorySettings(SettingsRecord, frozen=True, kw_only=True):
    """The limits below which a machine is short of memory, and dormant pods are removed."""

    available_min_ratio: float = 0.05
    """Part of the memory of one machine that must be available (MemAvailable, or below the limit of a cgroup); below it
    dormant pods are removed, the longest unused first. 0 disables this. Source: ours, 5 %."""

    stalled_max_ratio: float = 0.1
    """Part of the last 10 s in which processes may have waited for memory (PSI, "some" of /proc/pressure/memory); above
    it dormant pods are removed, too. 0 disables this. Source: ours, 10 %."""

    proc_folder: Annotated[str, Knob(key="proc-folder", unit=TEXT, live=True)] = "/proc"
    """Folder with meminfo and pressure/memory of the machine, if it is not /proc. Default: ours, /proc.
    """


class HttpCall(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request to the app, without a body."""

    method: str
    target: str


class CallPair(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP calls that make an app sleep and wake."""

    sleep: HttpCall
    wake: HttpCall


def read_calls(text: str) -> CallPair:
    """Parse the annotation ``serving.dev/dormant-call``. Raises ``InvalidValue``."""
    sleep, is_pair, wake = text.partition(",")
    if not is_pair:
        raise InvalidValue(text=text, expected=_CALLS)
    return CallPair(sleep=_read_call(sleep, text), wake=_read_call(wake, text))


def _read_call(call: str, text: str) -> HttpCall:
    method, _, target = call.strip().partition(" ")
    is_path = (
        target.startswith("/") and all(ord(character) in _TARGET_CODES for character in target) and "," not in target
    )
    if method not in _METHODS or not is_path:
        raise InvalidValue(text=text, expected=_CALLS)
    return HttpCall(method=method, target=target)


def _checked_mode(text: str) -> str:
    return written(read_dormant(text))


def _checked_calls(text: str) -> str:
    read_calls(text)
    return text


DORMANT = Unit(
    name="[mode](dormant.md#settings)",
    plain="mode",
    read=_checked_mode,
    read_plain=_checked_mode,
    write=str,
    explains=True,
    form=_DORMANT_FORM,
)
CALLS = Unit(
    name="two calls",
    plain="two calls",
    read=_checked_calls,
    read_plain=_checked_calls,
    write=str,
    explains=True,
    form=rf"{_CALL},{_CALL}",
)
