from pathlib import Path

import pytest

from serving.home.pods.machine import MachineReading, node_metrics, node_status, read_machine

STAT = """cpu  999 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 5000 900 3 7 40 0 0
cpu1 200 0 0 5000 0 0 0 0 0 0
intr 12345
"""
MEMINFO = "MemTotal:    4194304 kB\nMemFree:     1 kB\nMemAvailable: 3145728 kB\nHugePages_Total:  0\n"
GIB = 2**30


class Files:
    """A fake /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.write(self.proc / "stat", STAT)
        self.write(self.proc / "meminfo", MEMINFO)
        self.write(self.proc / "self" / "cgroup", "1:name=systemd:/\n0::/pods/ours\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def bound(self, folder: str, **files: str) -> None:
        """A cgroup's files, with dots for underscores."""
        self.write(self.cgroups / "cgroup.controllers", "cpu memory")
        for name, text in files.items():
            self.write(self.cgroups / folder / name.replace("_", ".", 1), text)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_without_cgroup_limits_the_whole_machine_is_allocatable(files: Files) -> None:
    machine = read_machine(files.proc, files.cgroups, cores=[0, 1])
    assert (machine.cpu_m, machine.memory_bytes) == (2000, 4 * GIB)
    assert node_status(machine, at="then")["allocatable"] == {"cpu": "2", "memory": "4194304Ki"}
    # 140 and 200 ticks of 10 ms: steal and iowait do not count as use.
    assert machine.read(files.proc) == MachineReading(cpu_s=3.4, memory_bytes=GIB)


def test_cpu_affinity_limits_allocatable_cpu_and_counted_usage(files: Files) -> None:
    machine = read_machine(files.proc, files.cgroups, cores=[0])
    assert (machine.cpu_m, machine.allocatable_cpu_m) == (2000, 1000)
    assert machine.read(files.proc).cpu_s == 1.4


def test_tightest_ancestor_cgroup_limits_and_measures_node(files: Files) -> None:
    files.bound("pods/ours", cpu_max="max 100000", memory_max="max")
    files.bound("pods", cpu_max="150000 100000", cpu_stat="usage_usec 2500000\nuser_usec 1\n", memory_max=f"{3 * GIB}")
    files.bound("pods", memory_current=f"{2 * GIB}", memory_stat=f"anon 1\ninactive_file {GIB // 2}\n")
    files.bound(".", memory_max=f"{8 * GIB}")
    machine = read_machine(files.proc, files.cgroups, cores=[0, 1])
    status = node_status(machine, at="then")
    assert status["capacity"] == {"cpu": "2", "memory": "4194304Ki"}
    assert status["allocatable"] == {"cpu": "1500m", "memory": "3145728Ki"}
    assert machine.read(files.proc) == MachineReading(cpu_s=2.5, memory_bytes=3 * GIB // 2)


def test_cgroup_limit_above_capacity_is_ignored(files: Files) -> None:
    files.bound("pods", cpu_max="900000 100000", memory_max=f"{64 * GIB}")
    machine = read_machine(files.proc, files.cgroups, cores=[0, 1])
    assert (machine.allocatable_cpu_m, machine.allocatable_memory_bytes) == (2000, 4 * GIB)
    assert (machine.cpu_cgroup, machine.memory_cgroup) == (None, None)


def test_missing_cgroup_file_means_no_limit(files: Files) -> None:
    (files.proc / "self" / "cgroup").unlink()
    assert read_machine(files.proc, files.cgroups, cores=[0]).cpu_cgroup is None


def test_node_metrics_have_the_format_of_metrics_server() -> None:
    before, after = MachineReading(cpu_s=10.0, memory_bytes=1), MachineReading(cpu_s=13.0, memory_bytes=GIB)
    resource = node_metrics("local", before, after, at="then", window_s=2.0)
    assert (resource["metadata"], resource["timestamp"], resource["window"]) == ({"name": "local"}, "then", "2.000s")
    assert resource["usage"] == {"cpu": "1500m", "memory": "1048576Ki"}
    # A counter that falls has been reset.
    assert node_metrics("local", after, before, at="then", window_s=2.0)["usage"]["cpu"] == "0"


def test_capacity_of_this_machine_is_read() -> None:
    machine = read_machine()
    assert machine.cpu_m >= machine.allocatable_cpu_m >= 1
    assert 0 < machine.read().memory_bytes < machine.memory_bytes
