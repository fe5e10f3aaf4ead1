"""No two folders import each other, and no daemon imports what is built on the daemons."""

from collections import defaultdict

from tests.tidy.sources import ROOT
from tests.tidy.test_circles import circles, import_graph

# Packages for users and for one machine, above the daemons and their libraries.
UPPER = {"nodes", "home", "tools"}
LOWER = {"activator", "autoscaler", "controller", "queueproxy", "core", "net"}


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


def test_folders_have_no_circular_imports() -> None:
    assert circles(folder_graph()) == []


def entry_of(module: str) -> str:
    """The entry below ``serving/`` that a module is part of."""
    return module.partition(".")[2].partition(".")[0]


def test_daemons_do_not_import_upper_packages() -> None:
    imports = [(module, target) for module, targets in import_graph().items() for target in targets]
    assert [pair for pair in imports if entry_of(pair[0]) in LOWER and entry_of(pair[1]) in UPPER] == []


def test_package_has_nine_entries() -> None:
    folders = {path.name for path in (ROOT / "serving").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == UPPER | LOWER
