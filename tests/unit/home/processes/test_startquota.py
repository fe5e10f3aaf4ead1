"""The CPU limit of a container is off while it starts, and the same after that."""

from pathlib import Path

from serving.home.processes.startquota import lift_quotas, restore_quotas


def test_limits_of_both_versions_are_lifted_and_restored(tmp_path: Path) -> None:
    first, unified, memory = tmp_path / "cpu", tmp_path / "unified", tmp_path / "memory"
    for folder in (first, unified, memory):
        folder.mkdir()
    (first / "cpu.cfs_quota_us").write_text("5000\n")
    (unified / "cpu.max").write_text("5000 100000\n")
    lifted = lift_quotas(map(str, (first, unified, memory)))
    assert (first / "cpu.cfs_quota_us").read_text() == "-1"
    assert (unified / "cpu.max").read_text() == "max"
    assert not list(memory.iterdir())
    restore_quotas(lifted)
    assert (first / "cpu.cfs_quota_us").read_text() == "5000"
    assert (unified / "cpu.max").read_text() == "5000 100000"


def test_a_cgroup_that_has_gone_needs_no_limit(tmp_path: Path) -> None:
    restore_quotas({tmp_path / "gone" / "cpu.max": "5000 100000"})
    assert not list(tmp_path.iterdir())
