"""Whether the app takes requests, from one attempt to the next, and when to try again.

Input: the outcome of an attempt. Output: the state after it, with the pause until the next. An app that is starting is
tried in short pauses that grow by a tenth, 2 ms to 50 ms, because its readiness is on the path of the request that woke
it; one that is ready is tried at its probe's own period, and is unready only after so many failures in a row.
"""

import msgspec

from serving.queueproxy.podspec import Probe
from serving.settings.queueproxy import QueueProxySettings

# A pause is then about a tenth of the time that has passed, and so is what readiness is late at most.
_PAUSE_GROWTH = 1.1


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the app. ``pause_s`` is the time until the next attempt; None asks no more."""

    is_ready: bool
    pause_s: float | None
    failure_count: int = 0


def at_start(settings: QueueProxySettings) -> Readiness:
    """Nothing is known yet: try at once, and take the first pause after that."""
    return Readiness(is_ready=False, pause_s=settings.probe_pause_min_s)


def after_attempt(state: Readiness, *, ok: bool, probe: Probe, settings: QueueProxySettings) -> Readiness:
    """What is known after an attempt.

    Pauses of an app that starts: 2, 2.2, 2.4, 2.7 ... 50, 50 ms: an app that takes 100 ms to listen is found within 12 ms of it,
    after 20 attempts of 0.1 ms.
    """
    if ok:
        return Readiness(is_ready=True, pause_s=probe.period_s or None)
    failure_count = state.failure_count + 1
    if state.is_ready and failure_count < probe.failure_max:
        return Readiness(is_ready=True, pause_s=probe.period_s, failure_count=failure_count)
    if state.is_ready:
        return at_start(settings)
    pause_s = settings.probe_pause_min_s if state.pause_s is None else state.pause_s * _PAUSE_GROWTH
    return Readiness(is_ready=False, pause_s=min(pause_s, settings.probe_pause_max_s), failure_count=failure_count)
