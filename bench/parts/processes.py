"""What processes use, read from /proc: CPU time and memory."""

import re
import time
from pathlib import Path

# CPUCLOCK_SCHED of a whole process.
_PROCESS_CLOCK = 2


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, in seconds.

    Its clock counts nanoseconds (clock_getcpuclockid(3)), /proc ticks of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)


def resident_mib(pid: int) -> float:
    """Memory of a process, in RAM and swapped out. Not Pss, which shrinks when another process maps the same files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(size) for size in re.findall(r"^(?:VmRSS|VmSwap):\s+(\d+) kB", status, re.MULTILINE)) / 1024


def pss_mib(pid: int) -> float:
    """Memory of a process, shared pages divided among the processes that share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
