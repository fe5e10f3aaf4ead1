import json
import platform
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.errors import InvalidValue
from serving.home.containers.seccompprofile import local_profile

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "other")


def asking(name: str) -> dict[str, Any]:
    return {"seccompProfile": {"type": "Localhost", "localhostProfile": name}}


def calls(folder: Path, *rules: dict[str, Any], capabilities: frozenset[str] = frozenset()) -> list[str]:
    """The names of the system calls in all rules that apply."""
    profile = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"action": "SCMP_ACT_ALLOW", **rule} for rule in rules]}
    (folder / "p.json").write_text(json.dumps(profile))
    entry = local_profile(folder, asking("p.json"), capabilities=capabilities)
    assert entry is not None
    return [name for syscall in entry["syscalls"] for name in syscall["names"]]


@pytest.mark.parametrize("security", [{}, {"seccompProfile": {"type": "RuntimeDefault"}}])
def test_no_localhost_profile_returns_none(tmp_path: Path, security: dict[str, Any]) -> None:
    assert local_profile(tmp_path, security) is None


def test_localhost_profile_is_converted_to_oci(tmp_path: Path) -> None:
    argument = {"index": 0, "value": 8, "valueTwo": 0, "op": "SCMP_CMP_EQ"}
    rule = {"names": ["personality"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": [argument]}
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [rule, {"name": "old", "action": "SCMP_ACT_LOG"}],
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
    }
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "p.json").write_text(json.dumps(profile))
    result = local_profile(tmp_path, asking("below/p.json"))
    assert result == {
        "defaultAction": "SCMP_ACT_ALLOW",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [rule, {"names": ["old"], "action": "SCMP_ACT_LOG"}],
    }


def test_seccomp_rules_apply_by_capability_machine_and_kernel(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [
        {"names": ["plain"]},
        {"names": ["traced"], "includes": {"caps": ["CAP_SYS_PTRACE"]}},
        {"names": ["untraced"], "excludes": {"caps": ["CAP_SYS_PTRACE", "CAP_SYS_ADMIN"]}},
        {"names": ["here"], "includes": {"arches": [MACHINE]}},
        {"names": ["elsewhere"], "includes": {"arches": ["s390x"]}},
        {"names": ["both"], "includes": {"arches": [MACHINE], "caps": ["CAP_SYS_PTRACE"]}},
        {"names": ["recent"], "includes": {"minKernel": "4.8"}},
        {"names": ["future"], "includes": {"minKernel": "900.1"}},
    ]
    assert calls(tmp_path, *rules) == ["plain", "untraced", "here", "recent"]
    with_right = calls(tmp_path, *rules, capabilities=frozenset({"CAP_SYS_PTRACE"}))
    assert with_right == ["plain", "traced", "here", "both", "recent"]


@pytest.mark.parametrize(
    "name", ["", "none.json", "../secret.json", "/etc/passwd", "link.json", "folder", "broken.json"]
)
def test_missing_invalid_or_outside_profile_is_rejected(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "seccomp"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    (folder / "broken.json").write_text('{"defaultAction": 5}')
    with pytest.raises(InvalidValue, match="to be a profile below"):
        local_profile(folder, asking(name))
