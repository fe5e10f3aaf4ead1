"""Runs every case of a conformance file and prints the failing ones.

    python tests/conformance/run.py KIND FILE.jsonl [--show N]

KIND is the stem of a file in tests/conformance/data. A case that does not hold is printed with its name, what was
expected and what was got; the last line is "KIND: P of N cases hold". Exit 0 only if all hold, 1 if some do not, 2 if
the call or the file is wrong. The cases were got by running the originals (see each adapter's docstring); the adapters
translate, the logic is the product's.

Any Python starts this: one that lacks the project's packages hands over to the project's virtual environment.
"""

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "conformance" / "data"
NEEDED_PACKAGES = ("msgspec", "numpy", "scipy", "yaml")
HANDED_OVER = "SERVING_CONFORMANCE_HANDED_OVER"


def kinds() -> list[str]:
    """The kinds of cases: one adapter each."""
    return sorted(path.stem for path in (ROOT / "tests" / "conformance" / "adapters").glob("[a-z]*.py"))


def read_cases(path: Path) -> Iterator[dict[str, Any]]:
    """The cases of a file, one JSON object a line; blank lines are skipped."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise SystemExit(f"{path}:{number}: not JSON: {error}") from error


def failure(kind: str, case: dict[str, Any]) -> dict[str, Any] | None:
    """None if the case holds, else its name with the expected and the actual result."""
    adapter = importlib.import_module(f"tests.conformance.adapters.{kind}")
    expected = adapter.expected(case)
    try:
        result = adapter.result_of(case)
    except Exception:  # noqa: BLE001 - one broken case must not hide the others
        result = traceback.format_exc()
    else:
        if adapter.agrees(expected, result):
            return None
    return {"name": case.get("name"), "expected": expected, "got": result}


def run(kind: str, path: Path, show: int) -> int:
    """Run a file's cases, print at most ``show`` failing ones, and return the exit code."""
    cases = list(read_cases(path))
    failures = [entry for case in cases if (entry := failure(kind, case))]
    for entry in failures[:show]:
        print(f"{entry['name']}\n  expected {entry['expected']!r}\n  got      {entry['got']!r}")
    print(f"{kind}: {len(cases) - len(failures)} of {len(cases)} cases hold")
    return 1 if failures or not cases else 0


def hand_over() -> None:
    """Switch to the virtual environment's Python if this one lacks the project's packages."""
    if all(importlib.util.find_spec(name) for name in NEEDED_PACKAGES) or HANDED_OVER in os.environ:
        return
    python = ROOT / ".venv" / "bin" / "python"
    if not (ROOT / ".venv" / ".ready").exists():
        subprocess.run(["make", "--silent", "setup"], cwd=ROOT, check=True, stdout=sys.stderr)
    os.execve(python, [str(python), *sys.argv], {**os.environ, HANDED_OVER: "1"})  # noqa: S606 - no shell is wanted


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Answer every case of a conformance file.")
    parser.add_argument("kind", choices=kinds(), metavar="KIND", help=", ".join(kinds()))
    parser.add_argument("file", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--show", type=int, default=10, metavar="N", help="print at most N cases that do not hold")
    options = parser.parse_args()
    if not options.file.is_file():
        parser.error(f"no such file: {options.file}")
    hand_over()
    # In place of this folder, which has an "http" of its own.
    sys.path[0] = str(ROOT)
    return run(options.kind, options.file, options.show)


if __name__ == "__main__":
    sys.exit(main())
