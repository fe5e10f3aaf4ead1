from serving.net.cluster.identity import is_daemon, new_identity, system_namespace, user_agent


def test_two_processes_of_one_pod_have_two_names() -> None:
    pod = {"SERVING_POD_NAME": "controller-x2x4q"}
    first, second = new_identity(pod), new_identity(pod)
    assert first != second
    assert first.startswith("controller-x2x4q_")
    assert not new_identity({}).startswith("_"), "without a pod it is the machine's name"


def test_leases_are_where_the_system_is() -> None:
    assert system_namespace({"SERVING_SYSTEM_NAMESPACE": "serving"}) == "serving"
    assert system_namespace({}) == "knative-serving"


def test_the_manager_of_fields_is_the_daemon() -> None:
    assert user_agent("controller", "a_1") == "controller/a_1 (serving.dev)"


def test_a_daemon_is_known_by_its_user_agent() -> None:
    assert is_daemon(user_agent("dashboard", "a_1"))
    assert not is_daemon("dashboard/v2.7.0")
