"""A wall clock that can jump, for every Python process of ``bench/faults.py``.

Python imports a module of this name at its start (site). ``BENCH_CLOCK`` names a file of eight bytes, the seconds by
which ``time.time`` is off; it is mapped into memory, so that a jump holds in all processes at once.
"""

import mmap
import os
import struct
import time

_OFFSET = struct.Struct("d")
_PATH = os.environ.get("BENCH_CLOCK", "")

if _PATH:
    _real_s = time.time
    with open(_PATH, "rb") as _file:  # noqa: PTH123 - before anything else
        _mapped = mmap.mmap(_file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)

    def _jumped_s() -> float:
        offset_s: float = _OFFSET.unpack_from(_mapped)[0]
        return _real_s() + offset_s

    time.time = _jumped_s
