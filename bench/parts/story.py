"""The timeline of a demo: events, checks, and counts."""

import math
import time
from collections.abc import Sequence

from bench.parts.system import System

BARS = " ▁▂▃▄▅▆▇█"
# Time between two looks at the system.
PERIOD_S = 0.5


class Story:
    """The system, its timeline, and what held."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.held: list[str] = []
        self._began_s = time.monotonic()

    def print_part(self, text: str) -> None:
        """Print a line of the timeline."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    def check(self, what: str, *, holds: bool) -> None:
        """Note that something holds; end at once if it does not."""
        self.print_part(f"{'holds' if holds else 'FAILED'}: {what}")
        if not holds:
            raise SystemExit(1)
        self.held.append(what)


def bars(counts: Sequence[int], most: int = 0) -> str:
    """A plot of counts in one line; ``most`` is a full bar, by default the largest of them."""
    full = max(most, *counts, 1)
    return "".join(BARS[math.ceil(count / full * (len(BARS) - 1))] for count in counts)
