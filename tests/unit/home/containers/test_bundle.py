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


def test_a_rootless_container_shares_the_network_and_mounts_nothing_of_other_users() -> None:
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


def test_a_container_of_root_has_a_network_and_sysfs_of_its_own() -> None:
    config = bundle_config(box(is_rootless=False), {})
    assert {"type": "network"} in config["linux"]["namespaces"]
    assert next(mount for mount in config["mounts"] if mount["destination"] == "/sys")["type"] == "sysfs"


def test_a_container_with_users_of_its_own_has_its_files_where_they_may_enter() -> None:
    own = msgspec.structs.replace(
        box(is_rootless=False), network="/run/network", users=OwnUsers(first=70_000, place="/mnt")
    )
    config = bundle_config(own, {})
    linux, mounts = config["linux"], {mount["destination"]: mount for mount in config["mounts"]}
    assert linux["uidMappings"] == linux["gidMappings"] == [{"containerID": 0, "hostID": 70_000, "size": 65_536}]
    # The runtime is in the network already.
    assert [namespace["type"] for namespace in linux["namespaces"]] == ["pid", "ipc", "uts", "mount", "cgroup", "user"]
    assert (config["root"]["path"], mounts["/sys"]["source"]) == ("/mnt/root", "/mnt/sys")


def test_a_container_makes_the_calls_of_dockers_list_unless_it_is_unconfined() -> None:
    for security in ({}, {"seccompProfile": {"type": "RuntimeDefault"}}):
        assert bundle_config(box(is_rootless=False), security)["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    unconfined = {"seccompProfile": {"type": "Unconfined"}}
    assert "seccomp" not in bundle_config(box(is_rootless=False), unconfined)["linux"]


def test_a_compiled_filter_stands_for_the_default_profile_only() -> None:
    compiled = msgspec.structs.replace(box(is_rootless=False), seccomp_filter="AAAA")
    default = bundle_config(compiled, {})
    assert default["annotations"] == {"run.oci.seccomp_bpf_data": "AAAA"}
    # For a runtime that does not know the annotation.
    assert default["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    own = msgspec.structs.replace(compiled, seccomp={"defaultAction": "SCMP_ACT_KILL"})
    for container_box, security in ((own, {}), (compiled, {"seccompProfile": {"type": "Unconfined"}})):
        assert bundle_config(container_box, security)["annotations"] == {}


def test_a_container_gains_no_privileges_unless_it_asks() -> None:
    assert bundle_config(box(is_rootless=False), {})["process"]["noNewPrivileges"]
    asks = {"allowPrivilegeEscalation": True}
    assert not bundle_config(box(is_rootless=False), asks)["process"]["noNewPrivileges"]


def test_the_paths_that_docker_masks_are_masked() -> None:
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


def test_the_counters_of_each_processors_heat_are_masked(tmp_path: Path) -> None:
    for name in ("cpu0/thermal_throttle", "cpu12/thermal_throttle", "cpu3/cache", "cpufreq/thermal_throttle"):
        (tmp_path / name).mkdir(parents=True)
    assert thermal_paths(tmp_path) == (
        str(tmp_path / "cpu0/thermal_throttle"),
        str(tmp_path / "cpu12/thermal_throttle"),
    )


def test_a_pod_of_a_user_who_is_no_admin_gets_no_more_rights_than_the_baseline_gives() -> None:
    container = {"name": "c", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}
    pod = {"metadata": {"annotations": {"serving.dev/images-only": "true"}}, "spec": {"containers": [container]}}
    with pytest.raises(InvalidValue, match=r'violates PodSecurity "baseline:latest": seccompProfile'):
        check_rights(pod)
    # An admin's, and a plain one.
    check_rights({**pod, "metadata": {}})
    check_rights({**pod, "spec": {"containers": [{"name": "c"}]}})
