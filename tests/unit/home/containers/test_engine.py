from serving.home.containers.engine import find_engine, joins_cgroups, runtime_arguments


def test_a_runtime_of_another_name_is_refused() -> None:
    engine = find_engine("docker")
    assert (engine.runtime, engine.reason) == (
        "",
        "SERVING_CONTAINER_RUNTIME=docker: expected one of crun, runc, rootless",
    )


def test_crun_is_not_to_manage_cgroups_and_runc_always_does() -> None:
    assert runtime_arguments("/usr/bin/crun", "s", "e")[-2:] == ("--cgroup-manager", "disabled")
    assert "--cgroup-manager" not in runtime_arguments("/usr/sbin/runc", "s", "e")
    assert (joins_cgroups("/usr/bin/crun"), joins_cgroups("/usr/sbin/runc")) == (False, True)
