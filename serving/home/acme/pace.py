"""Decides when a certificate is ordered: at its renewal, and again after failures.

Input: the certificate's validity, earlier failures, and the wall clock in seconds since the epoch. Output: times of that clock. A
refusal about one host pauses that host; a failure of the whole server pauses all hosts. A server's ``Retry-After`` is respected.
"""

import zlib

import msgspec

from serving.core.traffic.backoff import backoff_s

# Let's Encrypt allows five failed validations of a host an hour.
_HOST_FIRST_S = 120.0
_HOST_MAX_S = 12 * 3600.0
_SERVER_FIRST_S = 60.0
_SERVER_MAX_S = 3600.0
_LIFETIME_SHARE = 2 / 3
# Hosts that were issued together are renewed within a twentieth of the lifetime.
_SPREAD = 1 / 20
_SPREAD_STEPS = 1024


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive failures of a host or of the server, and the earliest time of the next attempt."""

    count: int
    retry_at_s: float


def renewal_at_s(host: str, *, not_before_s: float, not_after_s: float) -> float:
    """The time to renew a certificate: after 62 % to 67 % of its lifetime, depending on the host.

    The hosts are spread, so that certificates ordered together are not renewed together.
    """
    share = _LIFETIME_SHARE - _SPREAD * (zlib.crc32(host.encode()) % _SPREAD_STEPS) / _SPREAD_STEPS
    return not_before_s + share * (not_after_s - not_before_s)


def host_failed(before: Failures | None, now_s: float, *, retry_after_s: float) -> Failures:
    """Add a failure to a host's failures.

    The pause before the next attempt begins at 2 minutes and doubles with each failure, up to 12 hours. It is at least
    ``retry_after_s``, the pause that the server requests.
    """
    return _failed(before, now_s, max(retry_after_s, 0.0), first_s=_HOST_FIRST_S, max_s=_HOST_MAX_S)


def server_failed(before: Failures | None, now_s: float) -> Failures:
    """Add a failure to the server's failures.

    The pause before the next attempt begins at a minute and doubles with each failure, up to an hour.
    """
    return _failed(before, now_s, 0.0, first_s=_SERVER_FIRST_S, max_s=_SERVER_MAX_S)


def _failed(before: Failures | None, now_s: float, least_s: float, *, first_s: float, max_s: float) -> Failures:
    count = 1 if before is None else before.count + 1
    return Failures(count=count, retry_at_s=now_s + max(least_s, backoff_s(count, first_s=first_s, max_s=max_s)))
