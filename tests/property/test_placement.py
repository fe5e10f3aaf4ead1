"""The node book after any changes equals a newly built one."""

from hypothesis import given
from hypothesis import strategies as st

from serving.nodes.placement.book import NodeBook, node_of, pod_of
from tests.unit.nodes.placement.builders import node, pod

NAMES = st.sampled_from("abc")
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("node"), NAMES, st.integers(1, 8)),
        st.tuples(st.just("no node"), NAMES, st.just(0)),
        st.tuples(st.just("pod"), st.tuples(st.sampled_from("pqrs"), NAMES), st.integers(0, 4)),
        st.tuples(st.just("no pod"), st.sampled_from("pqrs"), st.just(0)),
        st.tuples(st.just("table"), st.none(), st.just(0)),
    ),
    max_size=30,
)


def requested(book: NodeBook) -> dict[str, tuple[int, ...]]:
    table = book.table()
    return {
        name: (
            *map(int, table.request[:, column]),
            *map(int, table.nonzero[:, column]),
            int(table.allocatable[0, column]),
        )
        for name, column in table.index_by_name.items()
    }


@given(CHANGES)
def test_node_book_equals_one_built_at_once(changes: list[tuple[str, object, int]]) -> None:
    book, nodes, pods = NodeBook(), {}, {}
    for what, of, cpu in changes:
        match what, of:
            case "node", str(name):
                nodes[name] = node_of(node(name, cpu=str(cpu)))
                book.set_node(nodes[name])
            case "no node", str(name):
                nodes.pop(name, None)
                book.drop_node(name)
            case "pod", (str(name), str(on)):
                placed_pod = pod_of(pod(name, on=on, cpu=str(cpu)))
                assert placed_pod is not None
                pods[name] = placed_pod
                book.set_pod(placed_pod)
            case "no pod", str(name):
                pods.pop(name, None)
                book.drop_pod(("default", name))
            case _:
                book.table()
    other = NodeBook()
    for node_facts in nodes.values():
        other.set_node(node_facts)
    for each in pods.values():
        other.set_pod(each)
    assert requested(book) == requested(other)
