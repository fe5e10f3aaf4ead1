"""``make fuzz``: changes the seeds of each target for a time, and keeps what fails.

    python -m tests.fuzz.run [--seconds N] [--seed N] [TARGET...]

Each target gets the same share of the time. An input that fails is written to ``tests/fuzz/corpus/TARGET``, where
``make test`` finds it from then on.
"""

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections.abc import Sequence

from tests.fuzz.targets import CORPUS, TARGETS, inputs_of

Change = tuple[int, int, bytes]
# Tokens of the formats.
TOKENS = [
    *(
        b"",
        b"\0",
        b"\xff",
        b"\x80",
        b"\r\n",
        b"\n",
        b" ",
        b"\t",
        b":",
        b",",
        b"-",
        b"0",
        b"1",
        b"9" * 30,
        b"1e999",
        b"-1",
    ),
    *(
        b'"',
        b"'",
        b"{",
        b"}",
        b"[",
        b"]",
        b"null",
        b"true",
        b"{}",
        b"[]",
        b'""',
        b"&m",
        b"*m",
        b"!!binary ",
        b"%",
        b"~1",
    ),
    *(
        b"..",
        b"/",
        b"../",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"$patch",
        b"chunked",
        b"Content-Length: 5\r\n",
        b"\xff" * 8,
        b"[" * 3000,
    ),
]
_CHANGES_MAX = 8
_REMOVED_MAX = 12


def changed(data: bytes, changes: Sequence[Change]) -> bytes:
    """The data after all changes: each removes bytes at a place and inserts others."""
    for place, removed, new in changes:
        at = place % (len(data) + 1)
        data = data[:at] + new + data[at + removed :]
    return data


def drawn(seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """A seed with random changes, at times spliced with another."""
    data = dice.choice(seeds)
    if dice.random() < 0.1:
        other = dice.choice(seeds)
        data = data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]
    changes = [
        (
            dice.randrange(1 << 20),
            dice.randrange(_REMOVED_MAX),
            dice.choice(TOKENS) if dice.random() < 0.7 else dice.randbytes(2),
        )
        for _ in range(dice.randint(1, _CHANGES_MAX))
    ]
    return changed(data, changes)


def fuzz(name: str, *, seconds: float, seed: int) -> tuple[int, int]:
    """Fuzz one target; returns the number of inputs and of failures, each of another kind."""
    dice, seeds, until_s = random.Random(f"{seed} {name}"), inputs_of(name), time.monotonic() + seconds
    count, kinds = 0, set[str]()
    while time.monotonic() < until_s:
        data = drawn(seeds, dice)
        count += 1
        try:
            TARGETS[name].run(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {last.filename}:{last.lineno}"
            if kind not in kinds:
                kinds.add(kind)
                path = CORPUS / name / hashlib.sha256(data).hexdigest()[:16]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(data.hex())
                sys.stdout.write(f"{name}: {kind}: {error}\n  {path}\n")
    return count, len(kinds)


def main() -> int:
    """Fuzz the named targets, or all of them."""
    parser = argparse.ArgumentParser(description="Fuzz what others give to serving.")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all targets")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    failed = 0
    sys.stdout.write(f"seed {arguments.seed}\n")
    for name in names:
        count, failures = fuzz(name, seconds=arguments.seconds / len(names), seed=arguments.seed)
        failed += failures
        sys.stdout.write(f"{name:<20} {count:>9} inputs  {failures} failures\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
