"""When a process that ended is started again: at once, then after a pause that doubles, up to a bound.

A fold without a clock: input is how long the process lived, output the pause and the memory for the next time. Follows
the kubelet, which answers the first end at once, with shorter pauses: no image is pulled here.
"""

import msgspec


class RestartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the kubelet is with what keeps ending. Times in seconds."""

    pause_first_s: float = 1.0
    """Pause after the second end in a row; doubles with each more. Default: ours, 1 s; the kubelet waits 10 s."""

    pause_max_s: float = 60.0
    """Longest pause. Default: ours, 60 s; the kubelet's is 300 s."""

    sound_s: float = 30.0
    """A process that lived so long was sound: its end is answered at once. Default: ours; the kubelet asks 600 s."""


def pause_after(previous_s: float | None, *, lived_s: float, settings: RestartSettings) -> float:
    """The pause before the next start. ``previous_s`` is the pause before, None if there was none yet.

    Ends after 1 s each: 0, 1, 2, 4, ..., 32, 60 and 60 again. After one that lived 30 s: 0.
    """
    if previous_s is None or lived_s >= settings.sound_s:
        return 0.0
    return min(settings.pause_max_s, max(settings.pause_first_s, previous_s * 2))
