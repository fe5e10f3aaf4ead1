"""Memory readings from files in the kernel's format."""

from pathlib import Path

import pytest

from serving.autoscaler.io.memorywatch import read_memory
from serving.core.scaling.memoryshort import MemoryReading
from tests.unit.home.pods.test_machine import GIB, Files

PRESSURE = "some avg10=12.50 avg60=3.00 avg300=1.00 total=99\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=9\n"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_memory_is_read_without_cgroups_and_psi(files: Files) -> None:
    memory_reading = read_memory(files.proc, files.cgroups)
    assert memory_reading == MemoryReading(total_bytes=4 * GIB, available_bytes=3 * GIB, stalled_ratio=0.0)


def test_cgroup_with_the_least_available_memory_is_used(files: Files) -> None:
    files.bound("pods/ours", memory_max="max")
    files.bound("pods", memory_max=f"{2 * GIB}", memory_current=f"{2 * GIB}")
    files.bound("pods", memory_stat=f"anon 1\ninactive_file {GIB // 2}\n")
    files.write(files.proc / "pressure" / "memory", PRESSURE)
    memory_reading = read_memory(files.proc, files.cgroups)
    assert memory_reading == MemoryReading(total_bytes=2 * GIB, available_bytes=GIB // 2, stalled_ratio=0.125)


def test_cgroup_over_its_limit_has_0_bytes_available(files: Files) -> None:
    files.bound("pods", memory_max=f"{GIB}", memory_current=f"{2 * GIB}", memory_stat="anon 1\n")
    files.bound("pods/ours", memory_max="max")
    assert read_memory(files.proc, files.cgroups).available_bytes == 0


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal: five kB\n"])
def test_malformed_meminfo_raises(files: Files, text: str) -> None:
    files.write(files.proc / "meminfo", text)
    with pytest.raises(ValueError, match=r"MemTotal|MemAvailable|five"):
        read_memory(files.proc, files.cgroups)


def test_missing_meminfo_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="meminfo"):
        read_memory(tmp_path)


def test_memory_of_the_test_machine_is_readable() -> None:
    memory_reading = read_memory(Path("/proc"))
    assert 0 < memory_reading.available_bytes < memory_reading.total_bytes
    assert 0 <= memory_reading.stalled_ratio <= 1
