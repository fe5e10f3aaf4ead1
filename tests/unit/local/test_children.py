"""Who is started by ``serving up``."""

import os

from serving.local.children import CHILDREN, ChildProcess


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


def test_a_replacement_of_an_activator_has_a_name_of_its_own_and_other_children_have_none() -> None:
    children = CHILDREN()
    for child in children:
        child.generation = 2
    names = [child.environment.get("SERVING_ACTIVATOR_NAME") for child in children]
    assert names == [None, None, None, None, "activator.2"]


def test_a_process_is_ready_once_it_has_reported_so_and_stays_so() -> None:
    ready_fd, its_fd = os.pipe2(os.O_NONBLOCK)
    process = ChildProcess(1, started_s=0.0, ready_fd=ready_fd)
    seen = [process.is_ready]
    os.write(its_fd, b"1")
    os.close(its_fd)
    seen += [process.is_ready, process.is_ready]
    assert seen == [False, True, True]


def test_a_process_that_ends_without_a_report_is_not_ready() -> None:
    ready_fd, its_fd = os.pipe2(os.O_NONBLOCK)
    process = ChildProcess(1, started_s=0.0, ready_fd=ready_fd)
    os.close(its_fd)
    assert not process.is_ready
