from pathlib import Path

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.home.containers.bundle import ContainerBox, bundle_config, check_rights, thermal_paths
from serving.home.containers.users import ContainerUser
from serving.home.processes.ownusers import OwnUsers


def box(*, is_rootless: bool) -> ContainerBox:
    return ContainerBox(
        arguments=("/app",),
        environment={"A": "b"},
        folder="/",
        user=ContainerUser(uid=0, gid=0),
        mounts=(),
        hostname="h",
        network="",
        is_rootless=is_rootless,
    )


def test_rootless_container_shares_network_and_sets_no_mount_groups() -> None:
    config = bundle_config(box(is_rootless=True), {})
    assert [namespace["type"] for namespace in config["linux"]["namespaces"]] == [
        "pid",
        "ipc",
        "uts",
        "mount",
        "cgroup",
    ]
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    assert (mounts["/sys"]["type"], "ro" in mounts["/sys"]["options"]) == ("bind", True)
    assert not any(option.startswith("gid=") for mount in mounts.values() for option in mount["options"])


def test_root_container_has_network_namespace_and_sysfs() -> None:
    config = bundle_config(box(is_rootless=False), {})
    assert {"type": "network"} in config["linux"]["namespaces"]
    assert next(mount for mount in config["mounts"] if mount["destination"] == "/sys")["type"] == "sysfs"


def test_user_namespace_container_has_mappings_and_accessible_root() -> None:
    own = msgspec.structs.replace(
        box(is_rootless=False), network="/run/network", users=OwnUsers(first=70_000, place="/mnt")
    )
    config = bundle_config(own, {})
    linux, mounts = config["linux"], {mount["destination"]: mount for mount in config["mounts"]}
    assert linux["uidMappings"] == linux["gidMappings"] == [{"containerID": 0, "hostID": 70_000, "size": 65_536}]
    # The runtime already runs in the pod's network namespace.
    assert [namespace["type"] for namespace in linux["namespaces"]] == ["pid", "ipc", "uts", "mount", "cgroup", "user"]
    assert (config["root"]["path"], mounts["/sys"]["source"]) == ("/mnt/root", "/mnt/sys")


def test_seccomp_profile_is_dockers_unless_unconfined() -> None:
    for security in ({}, {"seccompProfile": {"type": "RuntimeDefault"}}):
        assert bundle_config(box(is_rootless=False), security)["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    unconfined = {"seccompProfile": {"type": "Unconfined"}}
    assert "seccomp" not in bundle_config(box(is_rootless=False), unconfined)["linux"]


def test_compiled_seccomp_filter_is_set_only_for_default_profile() -> None:
    compiled = msgspec.structs.replace(box(is_rootless=False), seccomp_filter="AAAA")
    default = bundle_config(compiled, {})
    assert default["annotations"] == {"run.oci.seccomp_bpf_data": "AAAA"}
    # Used by a runtime that does not support the annotation.
    assert default["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    own = msgspec.structs.replace(compiled, seccomp={"defaultAction": "SCMP_ACT_KILL"})
    for container_box, security in ((own, {}), (compiled, {"seccompProfile": {"type": "Unconfined"}})):
        assert bundle_config(container_box, security)["annotations"] == {}


def test_no_new_privileges_is_set_unless_escalation_is_allowed() -> None:
    assert bundle_config(box(is_rootless=False), {})["process"]["noNewPrivileges"]
    asks = {"allowPrivilegeEscalation": True}
    assert not bundle_config(box(is_rootless=False), asks)["process"]["noNewPrivileges"]


def test_masked_and_read_only_paths_equal_dockers() -> None:
    linux = bundle_config(box(is_rootless=False), {})["linux"]
    # DefaultSpec of Docker 28, daemon/pkg/oci/defaults.go; containerd 2.1 has the same.
    proc = ["acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list"]
    masked = {
        *(f"/proc/{name}" for name in proc),
        "/proc/timer_stats",
        "/sys/devices/virtual/powercap",
        "/sys/firmware",
    }
    assert set(linux["maskedPaths"]) == masked | set(thermal_paths())
    assert linux["readonlyPaths"] == ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def test_thermal_paths_lists_throttle_folders_of_all_cpus(tmp_path: Path) -> None:
    for name in ("cpu0/thermal_throttle", "cpu12/thermal_throttle", "cpu3/cache", "cpufreq/thermal_throttle"):
        (tmp_path / name).mkdir(parents=True)
    assert thermal_paths(tmp_path) == (
        str(tmp_path / "cpu0/thermal_throttle"),
        str(tmp_path / "cpu12/thermal_throttle"),
    )


def test_images_only_pod_must_meet_the_baseline() -> None:
    container = {"name": "c", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}
    pod = {"metadata": {"annotations": {"serving.dev/images-only": "true"}}, "spec": {"containers": [container]}}
    with pytest.raises(InvalidValue, match=r'violates PodSecurity "baseline:latest": seccompProfile'):
        check_rights(pod)
    # A pod of an admin, and a pod without a security context.
    check_rights({**pod, "metadata": {}})
    check_rights({**pod, "spec": {"containers": [{"name": "c"}]}})
