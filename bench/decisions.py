"""What decisions cost, against naive transcriptions of their specifications in the same run.

    python bench/decisions.py [--quick] [--json] [NAME ...]

Prints one line a figure: our median, the peer's, the median ratio peer/ours with its spread over rounds, the bar, and
whether it holds. Exit 1 if a bar is missed. ``metrics`` is what counting costs, ``nodegroup`` a pass over 5,000 nodes.
"""

import importlib
import sys

import msgspec

from bench.parts.program import options_of
from bench.parts.timing import ROUND_S, ROUNDS, Row, timed

PARTS = ("classic", "kpa", "adaptive", "scores", "nodegroup", "metrics", "gauges")


def line(row: Row) -> str:
    """One figure as text."""
    peer = f"{row.peer:12.2f}" if row.peer is not None else f"{'':>12}"
    ratio = f"{row.ratio:8.1f}x ({row.ratio_low:.1f} to {row.ratio_high:.1f})" if row.ratio is not None else ""
    verdict = {True: "holds", False: "MISSED", None: ""}[row.holds]
    return f"{row.name:<72} {row.ours:12.2f} {row.unit:<5} {peer} {ratio:<28} {row.bar:<18} {verdict}".rstrip()


def main() -> int:
    """Run the parts and print their rows."""
    options = options_of(__doc__, names=PARTS, rounds=ROUNDS, round_s=ROUND_S, quick={"rounds": 1, "round_s": 0.0})
    rows: list[Row] = []
    if not options.json:
        print(f"{'decision':<72} {'ours':>12} {'':5} {'naive':>12} {'naive/ours (spread)':>28} bar")
    for part in options.names:
        for one in importlib.import_module(f"bench.parts.{part}").rows():
            row = one if isinstance(one, Row) else timed(one, rounds=options.rounds, round_s=options.round_s)
            rows.append(msgspec.structs.replace(row, holds=None) if options.quick else row)
            if not options.json:
                print(line(rows[-1]), flush=True)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    return 1 if any(row.holds is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
