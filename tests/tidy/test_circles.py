"""No circular imports, including imports for types and inside functions."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePath

import pytest

from tests.tidy.sources import named, parsed, product_files
from tests.tidy.test_purity import imported

Graph = Mapping[str, set[str]]


def module_of(path: PurePath) -> str:
    """The full name of the module in a file."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Each module of the product with its imports of other modules of the product."""
    files = {module_of(PurePath(named(path))): path for path in product_files()}
    graph: dict[str, set[str]] = {module: set() for module in files}
    for module, path in files.items():
        for node in ast.walk(parsed(path.read_text())):
            for name in imported(node, PurePath(named(path))):
                target = name if name in files else name.rpartition(".")[0]
                if target in files and target != module:
                    graph[module].add(target)
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    results: list[list[str]] = []
    for root in graph:
        if root not in index:
            _visit(root, graph=graph, index=index, low=low, stack=stack, cycles=results)
    return sorted(results)


def _visit(
    root: str, *, graph: Graph, index: dict[str, int], low: dict[str, int], stack: list[str], cycles: list[list[str]]
) -> None:
    path: list[tuple[str, Iterator[str]]] = []

    def enter(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        path.append((node, iter(sorted(graph[node]))))

    enter(root)
    while path:
        node, targets = path[-1]
        target = next(targets, None)
        if target is None:
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == index[node]:
                group = stack[stack.index(node) :]
                del stack[stack.index(node) :]
                if len(group) > 1:
                    cycles.append(sorted(group))
        elif target not in index:
            enter(target)
        elif target in stack:
            low[node] = min(low[node], index[target])


def test_product_has_no_circular_imports() -> None:
    assert circles(import_graph()) == []


@pytest.mark.parametrize(
    ("graph", "seen"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}, []),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_rule_detects_a_circular_import(graph: Graph, seen: list[list[str]]) -> None:
    assert circles(graph) == seen
