"""The cost of a pod's own copy of its application at a start: an overlay as root, a copy of the files otherwise.

``python -m bench.app_copy --files 500`` makes a folder of so many files and prints the median of each way in milliseconds.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from serving.home.processes.appcopy import AppCopy, copy_files, prepare_copy, remove_copy
from serving.home.trees import discard_tree

_USER = 0x70000001
_FILE_BYTES = 4096


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="5 rounds")
    options = parser.parse_args()
    rounds = 5 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "app")
        source.mkdir()
        for number in range(options.files):
            (source / f"{number}.py").write_bytes(os.urandom(_FILE_BYTES))
        user = _USER if os.geteuid() == 0 else 0
        for name, prepare in (("start", prepare_copy), ("files", lambda copy: copy_files(copy, copy.root))):
            times_ms = []
            for number in range(rounds):
                place = Path(folder, f"{name}-{number}")
                place.mkdir()
                copy = AppCopy(source=str(source), place=str(place), user=user)
                begun_s = time.perf_counter()
                prepare(copy)
                times_ms.append(1000 * (time.perf_counter() - begun_s))
                remove_copy(place)
                discard_tree(place)
            what = "as a pod starts" if name == "start" else "copied file by file"
            print(f"{options.files} files, {what}: {statistics.median(times_ms):.2f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
