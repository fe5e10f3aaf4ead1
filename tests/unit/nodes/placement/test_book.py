from typing import Any

from serving.core.model.nodata import NoData
from serving.nodes.placement.book import NodeBook, node_of, pod_of
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from tests.unit.nodes.placement.builders import node, pod


def add_pods(book: NodeBook, *pods: dict[str, Any]) -> None:
    for each_pod in pods:
        placed_pod = pod_of(each_pod)
        assert placed_pod is not None
        book.set_pod(placed_pod)


def requested(book: NodeBook) -> dict[str, int]:
    """Millicores that are requested on each node."""
    table = book.table()
    return {name: int(table.request[0, column]) for name, column in table.index_by_name.items()}


def book_of(*names: str) -> NodeBook:
    book = NodeBook()
    for name in names:
        book.set_node(node_of(node(name)))
    return book


def test_pod_requests_are_summed_per_node() -> None:
    book = book_of("a", "b")
    add_pods(book, pod("p", on="a", cpu="1"), pod("q", on="a", cpu="500m"), pod("r", on="b", cpu="100m"))
    assert requested(book) == {"a": 1500, "b": 100}
    assert (book.pod_count("a"), book.pod_count("nowhere")) == (2, 0)


def test_deleted_pod_releases_its_request_once() -> None:
    book = book_of("a")
    add_pods(book, pod("p", on="a", cpu="1"))
    book.drop_pod(("default", "p"))
    book.drop_pod(("default", "p"))
    assert requested(book) == {"a": 0}


def test_recreated_pod_counts_on_its_new_node() -> None:
    book = book_of("a", "b")
    add_pods(book, pod("p", on="a", cpu="1"))
    add_pods(book, pod("p", on="b", cpu="2"))
    assert requested(book) == {"a": 0, "b": 2000}


def test_pod_listed_before_its_node_is_counted() -> None:
    book = book_of("a")
    assert requested(book) == {"a": 0}
    add_pods(book, pod("p", on="b", cpu="1"))
    assert requested(book) == {"a": 0}
    book.set_node(node_of(node("b")))
    assert requested(book) == {"a": 0, "b": 1000}


def test_table_is_reused_without_changes() -> None:
    book = book_of("a")
    add_pods(book, pod("p", on="a", cpu="1"))
    table = book.table()
    add_pods(book, pod("p", on="a", cpu="1"))
    book.set_node(node_of(node("a")))
    assert book.table() is table


def test_changed_node_renews_only_its_column() -> None:
    book = book_of("a", "b")
    before = book.table()
    book.set_node(node_of(node("b", cpu="1")))
    after = book.table()
    assert after.changed_from == before.version
    assert after.changed is not None
    assert [int(index) for index in after.changed] == [after.index_by_name["b"]]


def test_deleted_node_is_removed_from_table() -> None:
    book = book_of("a", "b")
    book.table()
    book.drop_node("a")
    book.drop_node("a")
    assert requested(book) == {"b": 0}
    assert book.node("a") is None


def test_node_usage_is_in_the_table_until_withdrawn() -> None:
    book = book_of("a", "b")
    usage = NodeUsage(at_s=5.0, cpu=Usage(mean_percent=40.0, deviation_percent=1.0), memory=NoData(missing="it"))
    book.set_usages({"a": usage, "gone": usage})
    table = book.table()
    assert [bool(is_measured) for is_measured in table.measured[0]] == [True, False]
    assert float(table.mean_percent[0, 0]) == 40.0
    book.set_usages({})
    assert not book.table().measured.any()


def test_deleted_pod_does_not_release_requests_of_other_pods() -> None:
    book = book_of("a")
    add_pods(book, pod("p", on="a", cpu="1"), pod("q", on="a", cpu="2"))
    book.drop_pod(("default", "p"))
    assert requested(book) == {"a": 2000}
    assert book.pod_count("a") == 1
