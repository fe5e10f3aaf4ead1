"""Samples the CPU of this process by parts of the code.

Each 2 ms of CPU a signal looks at the stack. A sample belongs to the innermost part on it: what the store does for a
controller is the store's, what a reflector's callback does is that of the part that registered it.
"""

import collections
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_PERIOD_S = 0.002
# By the end of a file's path; the first that fits counts.
_PARTS = (
    ("serving/net/cluster/reflector.py", "reflectors"),
    ("serving/net/cluster/port.py", "reflectors"),
    ("serving/net/cluster/workqueue.py", "queues and turns"),
    ("serving/net/aio/", "queues and turns"),
    ("serving/net/cluster/", "store"),
    ("serving/home/store/", "store"),
    ("serving/home/admission/", "store"),
    ("serving/home/", "manager"),
    ("serving/controller/", "controller"),
    ("serving/autoscaler/", "autoscaler"),
    ("serving/core/scaling/", "autoscaler"),
    ("bench/", "bench"),
)


@contextlib.contextmanager
def cpu_shares() -> Iterator[dict[str, float]]:
    """Sample while the context lasts; after it the answer has each part's share, the largest first."""
    counts: collections.Counter[str] = collections.Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        counts[_part_of(frame)] += 1

    found: dict[str, float] = {}
    before = signal.signal(signal.SIGPROF, sample)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _PERIOD_S, _PERIOD_S)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        found |= {part: round(count / counts.total(), 2) for part, count in counts.most_common()}


def _part_of(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        for end, part in _PARTS:
            if end in path:
                return part
        frame = frame.f_back
    return "loop"
