from serving.home.containers.engine import find_engine, joins_cgroups, runtime_arguments


def test_unknown_container_runtime_is_rejected() -> None:
    engine = find_engine("docker")
    assert (engine.runtime, engine.reason) == (
        "",
        "SERVING_CONTAINER_RUNTIME=docker: expected one of crun, runc, rootless",
    )


def test_only_runc_manages_cgroups() -> None:
    assert runtime_arguments("/usr/bin/crun", "s", "e")[-2:] == ("--cgroup-manager", "disabled")
    assert "--cgroup-manager" not in runtime_arguments("/usr/sbin/runc", "s", "e")
    assert (joins_cgroups("/usr/bin/crun"), joins_cgroups("/usr/sbin/runc")) == (False, True)
