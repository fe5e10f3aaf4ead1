from collections.abc import Mapping
from pathlib import Path

from serving.home.containers.cgroups import CgroupTree, Limits


def new_tree(folder: Path, *, is_unified: bool = False) -> CgroupTree:
    kinds = ("cpu", "cpuacct", "memory")
    places = {kind: folder if is_unified else folder / kind for kind in kinds}
    for path in set(places.values()):
        path.mkdir(exist_ok=True)
    return CgroupTree(folders=places, is_unified=is_unified)


def written(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_limits_are_written_to_cgroup_v1_files(tmp_path: Path) -> None:
    folders, refused = new_tree(tmp_path).make("p/c", Limits(cpu_m=500, memory_bytes=2**26, cpu_request_m=250))
    assert (len(folders), refused) == (3, [])
    assert (tmp_path / "cpu/p/c/cpu.cfs_quota_us").read_text() == "50000"
    assert (tmp_path / "cpu/p/c/cpu.shares").read_text() == "256"
    assert (tmp_path / "memory/p/c/memory.limit_in_bytes").read_text() == str(2**26)


def test_limits_without_controllers_are_returned_as_refused() -> None:
    none = CgroupTree(folders={}, is_unified=False)
    assert none.make("p/c", Limits(cpu_m=500, memory_bytes=1)) == ((), ["cpu", "memory"])


def test_oom_kills_in_child_cgroups_are_counted(tmp_path: Path) -> None:
    cgroup_tree = new_tree(tmp_path)
    written(tmp_path / "cpuacct/p/c", {"cpuacct.usage": "1500000000"})
    memory = {"memory.stat": "total_inactive_file 1", "memory.usage_in_bytes": "11", "memory.oom_control": "oom_kill 0"}
    written(tmp_path / "memory/p/c", memory)
    written(tmp_path / "memory/p/c/p-c", {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1"})
    cgroup_use = cgroup_tree.read("p/c")
    assert cgroup_use is not None
    assert (cgroup_use.cpu_s, cgroup_use.memory_bytes, cgroup_use.oom_kill_count) == (1.5, 10, 1)


def test_only_cgroup_v2_has_a_path_for_the_runtime() -> None:
    folder = Path("/sys/fs/cgroup/serving-1")
    assert CgroupTree(folders={"memory": folder}, is_unified=True).path_of("p/c") == "/serving-1/p/c"
    assert CgroupTree(folders={"memory": folder}, is_unified=False).path_of("p/c") == ""
