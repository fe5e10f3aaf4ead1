"""Ages as kubectl prints them: "42s", "5m", "2d3h"."""

import datetime as dt

_MINUTE_S, _HOUR_S, _DAY_S, _YEAR_S = 60, 3600, 86_400, 365 * 86_400
_UNITS = {1: "s", _MINUTE_S: "m", _HOUR_S: "h", _DAY_S: "d", _YEAR_S: "y"}
# Upper bound in seconds and the two units that are shown below it; 0 for no second unit. Source: k8s.io/apimachinery util/duration.
_STEPS = (
    (2 * _MINUTE_S, 1, 0),
    (10 * _MINUTE_S, _MINUTE_S, 1),
    (3 * _HOUR_S, _MINUTE_S, 0),
    (8 * _HOUR_S, _HOUR_S, _MINUTE_S),
    (2 * _DAY_S, _HOUR_S, 0),
    (8 * _DAY_S, _DAY_S, _HOUR_S),
    (2 * _YEAR_S, _DAY_S, 0),
    (8 * _YEAR_S, _YEAR_S, _DAY_S),
)
_UNKNOWN = "<unknown>"


def age(stamp: object, *, now_s: float) -> str:
    """The time since a stamp of the API, "2026-11-21T04:30:00Z"; "<unknown>" if it is none."""
    if not isinstance(stamp, str):
        return _UNKNOWN
    try:
        then_s = dt.datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return _UNKNOWN
    return duration(now_s - then_s)


def duration(seconds: float) -> str:
    """A duration in at most two units, coarser the longer it is: 119 is "119s", 125 is "2m5s", 7300 is "121m"."""
    whole = int(seconds)
    if seconds < 0:
        # Two clocks differ a little; a larger difference is shown as invalid.
        return "0s" if seconds > -2 else "<invalid>"
    for below_s, large_s, small_s in _STEPS:
        if whole < below_s:
            large, small = whole // large_s, whole % large_s // small_s if small_s else 0
            return f"{large}{_UNITS[large_s]}" + (f"{small}{_UNITS[small_s]}" if small else "")
    return f"{whole // _YEAR_S}y"
