"""What a decision costs, against a naive transcription of its specification in the same run.

    python bench/decisions.py [--json] [PART ...]

Prints one line a figure: our median, the peer's, the median ratio peer/ours with its spread over rounds, the bar, and
whether it holds. Exit 1 if a bar is missed.
"""

import argparse
import importlib
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.timing import Row

__all__: list[str] = []

PARTS = ("classic", "kpa", "scores")


def line(row: Row) -> str:
    """One figure as text."""
    peer = f"{row.peer_us:12.2f}" if row.peer_us is not None else f"{'':>12}"
    ratio = f"{row.ratio:8.1f}x ({row.ratio_low:.1f} to {row.ratio_high:.1f})" if row.ratio is not None else ""
    verdict = {True: "holds", False: "MISSED", None: ""}[row.holds]
    return f"{row.name:<66} {row.ours_us:12.2f} {peer} {ratio:<28} {row.bar:<18} {verdict}".rstrip()


def main() -> int:
    """Run the parts and print their rows."""
    parser = argparse.ArgumentParser(description="What a decision costs, against a naive transcription.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    options = parser.parse_args()
    rows: list[Row] = []
    if not options.json:
        print(f"{'decision':<66} {'ours µs':>12} {'naive µs':>12} {'naive/ours (spread)':>28} bar")
    for part in options.parts or PARTS:
        for row in importlib.import_module(f"bench.parts.{part}").rows():
            rows.append(row)
            if not options.json:
                print(line(row), flush=True)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    return 1 if any(row.holds is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
