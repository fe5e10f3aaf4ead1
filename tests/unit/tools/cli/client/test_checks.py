import asyncio
import fcntl
import os
import socket
from pathlib import Path

import pytest

from serving.home.store.journal import Journal
from serving.tools.cli.client.checks import (
    Finding,
    check_cgroup,
    check_clock,
    check_descriptors,
    check_free_ports,
    check_isolation,
    check_journal,
    check_names,
    check_pod_names,
    check_python,
    check_secrets,
    check_state,
    check_user_namespaces,
    holder_of,
)


def states(findings: object) -> list[tuple[str, str]]:
    return [(finding.name, finding.state) for finding in findings]  # type: ignore[attr-defined]


def test_running_python_passes_the_check() -> None:
    assert states(check_python()) == [("python", "ok")]


def test_lock_holder_of_a_state_folder_is_read(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with (tmp_path / "lock").open("w") as file:
        assert holder_of(tmp_path) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holder_of(tmp_path) == os.getpid()


def test_world_readable_state_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    (tmp_path / "key").chmod(0o644)
    findings = list(check_state(tmp_path, None))
    assert states(findings)[:2] == [("state", "ok"), ("state", "warn")]
    assert findings[1].advice.startswith(f"chmod 600 {tmp_path / 'key'}")


def test_missing_state_folder_passes_the_check(tmp_path: Path) -> None:
    first, *_ = check_state(tmp_path / "a" / "b", None)
    assert (first.state, "`serving up` creates it" in first.text) == ("ok", True)


def test_occupied_port_fails_the_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (finding,) = check_free_ports({"public": port})
        assert (finding.state, finding.text) == ("fail", f"port {port} (public) is taken by another process")
        assert "--public-port=0" in finding.advice
    assert states(check_free_ports({"public": port})) == [("ports", "ok")]


def test_unresolvable_names_are_reported_with_a_workaround() -> None:
    assert states(check_names("localhost")) == [("names", "ok")]
    (finding,) = check_names("no such host")
    assert (finding.state, "curl -H" in finding.advice) == ("warn", True)


def test_cgroup_v2_needs_cpu_and_memory_controllers(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/mine\n")
    root = tmp_path / "cgroup"
    (root / "mine").mkdir(parents=True)
    assert [finding.text for finding in check_cgroup(root, own)] == ["cgroups are not mounted"]
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    assert [finding.text for finding in check_cgroup(root, own)] == ["cgroup v2 without cpu and memory here"]
    (root / "mine" / "cgroup.controllers").write_text("cpu memory\n")
    assert states(check_cgroup(root, own)) == [("cgroup", "ok")]


def test_cgroup_v1_needs_writable_cpu_and_memory_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/mine\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n")
    root = tmp_path / "cgroup"
    (root / "cpu").mkdir(parents=True)
    assert [finding.text for finding in check_cgroup(root, own)] == ["cgroup v1 without cpu and memory here"]
    (root / "memory" / "mine").mkdir(parents=True)
    assert states(check_cgroup(root, own)) == [("cgroup", "ok")]
    # Root may write everywhere, so file modes have no effect.
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != root / "memory" / "mine")
    (finding,) = check_cgroup(root, own)
    assert (finding.state, "limits of containers" in finding.text) == ("warn", False)
    assert f"this user may not create groups in it: {root / 'memory' / 'mine'} cannot be written" in finding.text
    assert finding.advice.startswith("memory is watched")


def test_low_file_descriptor_limit_is_reported_with_a_ulimit_command() -> None:
    assert states(check_descriptors((4096, 4096))) == [("files", "ok")]
    (few,) = check_descriptors((1024, 8192))
    assert (few.state, few.advice.startswith("`ulimit -n 8192`")) == ("warn", True)
    assert states(check_descriptors((64, 64))) == [("files", "fail")]


def test_a_clock_that_was_set_back_is_reported(tmp_path: Path) -> None:
    now_s = 1_800_000_000.0
    (tmp_path / "journal.db").touch()
    for path in (tmp_path / "journal.db", tmp_path):
        os.utime(path, (now_s, now_s))
    assert states(check_clock(tmp_path, wall_s=now_s)) == [("clock", "ok")]
    assert [finding.text for finding in check_clock(tmp_path, wall_s=now_s - 600)] == [
        "the newest file of the state folder is 600 s in the future"
    ]
    assert states(check_clock(tmp_path, wall_s=0.0)) == [("clock", "fail")]


def test_finding_has_no_advice_by_default() -> None:
    assert Finding(name="a", state="ok", text="b").advice == ""


def test_corrupt_journal_fails_the_check(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    asyncio.run(Journal(path).close())
    assert states(check_journal(path)) == [("journal", "ok")]
    path.write_bytes(b"garbage" + path.read_bytes()[7:])
    (finding,) = check_journal(path)
    assert (finding.state, "serving doctor --repair" in finding.advice) == ("fail", True)


def test_missing_mount_namespaces_are_reported_with_advice() -> None:
    assert states(check_pod_names(can_mount=True)) == [("pod names", "ok")]
    (finding,) = check_pod_names(can_mount=False)
    assert finding.state == "warn"
    assert "user.max_user_namespaces" in finding.advice


def test_missing_isolation_layers_are_reported() -> None:
    assert states(check_isolation([], is_root=True)) == [("isolation", "ok")]
    (shared,) = check_isolation([], is_root=False)
    assert (shared.state, "without root a pod is the user who runs serving" in shared.text) == ("warn", True)
    (finding,) = check_isolation(["landlock: Function not implemented"], is_root=True)
    assert (finding.state, "landlock" in finding.text) == ("warn", True)


def test_secrets_on_disk_are_reported_without_root() -> None:
    assert states(check_secrets(is_root=True)) == [("secrets", "ok")]
    assert states(check_secrets(is_root=False)) == [("secrets", "warn")]


@pytest.mark.parametrize(
    ("files", "is_root", "text"),
    [
        ({}, True, "the kernel does not support them"),
        ({"self/ns/user": "", "sys/user/max_user_namespaces": "0"}, True, "the kernel setting allows none"),
        ({"self/ns/user": "", "sys/kernel/unprivileged_userns_clone": "0"}, False, "only root may create them"),
        ({"self/ns/user": "", "sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, False, "AppArmor removes"),
    ],
)
def test_missing_user_namespaces_are_reported_with_cause_and_advice(
    files: dict[str, str], is_root: bool, text: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (finding,) = check_user_namespaces(tmp_path, is_root=is_root)
    assert (finding.state, finding.text.startswith(text)) == ("warn", True)
    assert finding.advice


@pytest.mark.parametrize("is_root", [True, False])
def test_user_namespaces_pass_the_check(is_root: bool, tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/user").write_text("")
    (finding,) = check_user_namespaces(tmp_path, is_root=is_root)
    assert (finding.state, finding.advice) == ("ok", "")
