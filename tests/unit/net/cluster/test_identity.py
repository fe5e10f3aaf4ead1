from serving.net.cluster.identity import is_daemon, new_identity, system_namespace, user_agent


def test_processes_of_one_pod_have_different_identities() -> None:
    pod = {"SERVING_POD_NAME": "controller-x2x4q"}
    first, second = new_identity(pod), new_identity(pod)
    assert first != second
    assert first.startswith("controller-x2x4q_")
    assert not new_identity({}).startswith("_"), "without a pod it is the machine's name"


def test_system_namespace_is_read_from_environment() -> None:
    assert system_namespace({"SERVING_SYSTEM_NAMESPACE": "serving"}) == "serving"
    assert system_namespace({}) == "knative-serving"


def test_user_agent_starts_with_daemon_name() -> None:
    assert user_agent("controller", "a_1") == "controller/a_1 (serving.dev)"


def test_serving_daemon_is_recognized_by_user_agent() -> None:
    assert is_daemon(user_agent("dashboard", "a_1"))
    assert not is_daemon("dashboard/v2.7.0")
