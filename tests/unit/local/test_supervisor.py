"""Who is started by ``serving up``."""

from serving.local.supervisor import CHILDREN


def test_several_activators_share_their_sockets_but_for_their_pages_of_metrics() -> None:
    first, second = (child for child in CHILDREN(2) if child.module == "serving.activator.main")
    assert (first.name, second.name) == ("activator", "activator-1")
    assert first.sockets == ("public", "tls", "inner", "activator-metrics")
    assert second.sockets == ("public", "tls", "inner", "activator-1-metrics")


def test_each_activator_knows_its_index_and_has_a_name_of_its_own() -> None:
    first, second = (child.environment for child in CHILDREN(2) if child.module == "serving.activator.main")
    same = {"SERVING_ACTIVATOR_COUNT": "2", "SERVING_ACTIVATOR_PROBE_UNREADY_PODS": "false"}
    assert first == {"SERVING_ACTIVATOR_INDEX": "0", **same}
    assert second == {"SERVING_ACTIVATOR_INDEX": "1", "SERVING_ACTIVATOR_NAME": "activator-1", **same}


def test_one_activator_is_started_unless_more_are_wanted() -> None:
    assert [child.name for child in CHILDREN()][-1] == "activator"
