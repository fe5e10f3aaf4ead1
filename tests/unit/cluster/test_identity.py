from serving.cluster.election import LeaseTimes
from serving.cluster.identity import lease_times, new_identity, system_namespace, user_agent
from serving.settings.election import ElectionSettings


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
    assert user_agent("controller", "a_1").partition("/") == ("controller", "/", "a_1")


def test_the_times_of_a_lease_are_the_settings() -> None:
    assert lease_times(ElectionSettings()) == LeaseTimes()
    settings = ElectionSettings(lease_duration_s=6.0, renew_deadline_s=4.0, retry_period_s=1.0)
    assert lease_times(settings) == LeaseTimes(duration_s=6.0, renew_deadline_s=4.0, retry_period_s=1.0)
