"""No two folders import each other, and no daemon imports what is built on the daemons."""

from collections import defaultdict

from tests.tidy.sources import ROOT
from tests.tidy.test_circles import circles, import_graph

RINGS = {"home", "simulator", "dashboard", "cli"}
DAEMONS = {"activator", "autoscaler", "controller", "extender", "nodegroup", "queueproxy"}


def folder_graph() -> dict[str, set[str]]:
    """Imports between folders, without those of a ``main``, which wires its daemon."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for module, targets in import_graph().items():
        if is_package(module) or module.rpartition(".")[2] in {"main", "__main__"}:
            continue
        folder = module.rpartition(".")[0]
        graph[folder] |= {target.rpartition(".")[0] for target in targets if not is_package(target)} - {folder}
    for folders in list(graph.values()):
        for folder in folders:
            graph[folder] |= set()
    return graph


def is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def test_no_folders_import_each_other() -> None:
    assert circles(folder_graph()) == []


def test_daemons_do_not_import_home() -> None:
    found = [
        f"{module} -> {target}"
        for module, targets in import_graph().items()
        for target in targets
        if module.split(".")[1:2]
        and module.split(".")[1] in DAEMONS
        and target.split(".")[1:2][0:1]
        and target.split(".")[1] in RINGS
    ]
    assert found == []
