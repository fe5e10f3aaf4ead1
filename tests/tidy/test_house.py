"""The size and shape of the house: how many files, how long, how they are grouped, and which folders import each other.

``make check`` prints the numbers. The limits are a ratchet: lower them when the tree shrinks.
"""

from collections import Counter, defaultdict
from pathlib import Path, PurePath

from tests.tidy.sources import ROOT, named, product_files
from tests.tidy.test_circles import circles, import_graph

LINES_MAX = 87_000
FILES_MAX = 554
# Lines and files of features that came after the house was counted, on top of the limits above.
FEATURES: dict[str, tuple[int, int]] = {
    "fast containers": (70, 0),
    "heads compared by line": (30, 0),
    "CPU limits that begin with the container": (50, 0),
    "first pods first in a burst": (300, 1),
    "settings of sidecars and intervals that apply at once": (20, 0),
    "bound on regret": (100, 1),
    "gauges, learnt target that protects": (1_000, 4),
    "bounds for slow and hostile clients": (800, 4),
    "a user per pod, disk budgets": (800, 3),
    "pods with users of their own, pauses after evictions": (500, 3),
    "inner TLS": (1_550, 10),
    "dormant pods": (1_200, 6),
    "backup, commit in the version": (350, 2),
    "queries with a token, bounds of the API": (300, 1),
    "roles, audit log, allow-from, JWT": (1_850, 10),
    "dormant pods on Kubernetes and in every view": (580, 3),
    "refusals counted, TCP": (430, 3),
    "faster simulator, worst functions": (220, 1),
    "goals for latency": (700, 2),
    "versions of formats, repair, systemd, bug report": (820, 7),
    "exact latency, pods without volumes": (60, 1),
    "budgets, gauges, model servers": (1_120, 5),
    "filters of headers and logs, isolation that is reported": (560, 2),
    "memory of dormant apps": (170, 1),
    "deploy words, runbooks, logs of gone pods, volumes": (1_000, 5),
    "services that fail first": (20, 0),
    "components of an install, names for pods' users": (250, 2),
    "slow readers": (410, 0),
    "memory short, clock jumps": (370, 3),
    "admission policies": (440, 1),
    "converted builds, names of compose services": (380, 2),
    "recorded requests": (690, 4),
    "overview, steps of cold starts": (570, 3),
    "several ports, SNI": (490, 2),
    "sessions of the own API server": (190, 2),
    "evicted pods": (120, 0),
    "marks that apps cannot forge": (120, 0),
    "proof of a pod, announced pods": (350, 2),
    "fewer writes": (30, 0),
    "names and ids that survive": (80, 0),
    "dates of responses": (35, 0),
    "temporary files of a pod": (60, 0),
    "history on disk": (700, 4),
    "slow readers, query token at pods, bodies of many values": (290, 2),
    "rests of revisions at zero": (120, 1),
    "rollout checks": (560, 4),
    "cost": (360, 3),
    "map": (190, 1),
    "requests that leave a lost node": (25, 0),
    "dashboard by namespace": (430, 3),
    "variables of compose files": (210, 1),
    "bug reports without copies of values": (15, 0),
    "shared options of services": (60, 0),
    "compared revisions": (580, 5),
    "daemons that share memory": (205, 1),
    "short names of services for every pod": (145, 1),
    "files of commands that are files": (70, 1),
    "a small supervisor, shared wake-ups": (200, 1),
    "large writes in threads, long lists in pieces": (125, 0),
    "wrong tokens": (120, 1),
    "packed copies of objects, checked rollouts": (100, 0),
    "requests that take freed connections": (120, 0),
    "derived objects that stay the same": (110, 1),
    "sizes of volumes": (290, 1),
    "restores with every Python 3.11, ports in one line": (60, 0),
    "inner TLS by default on a cluster": (190, 0),
    "links of pods, hosts of users": (50, 0),
    "starts side by side": (60, 0),
    "queue-proxy in the app's process on a cluster": (270, 2),
    "statuses of a busy controller": (60, 0),
}
MEAN_LINES_MIN = 140
FOLDER_FILES_MAX = 30
SMALL_LINES_MAX = 60
BASE_NAME_MAX = 3
# Names that a convention gives: the entry point of a daemon, and packages.
_CONVENTIONAL = {"__init__.py", "__main__.py", "main.py"}

# Small files with one importer, and why each is a file of its own.
SMALL_FILES: dict[str, str] = {
    "serving/activator/io/placeholder.py": "the page for browsers, which is text",
    "serving/controller/routes/confirmation.py": "the pure decision of a shell",
    "serving/nodegroup/io/clouds/choice.py": "the registry of clouds",
    "serving/queueproxy/io/asgi/innertls.py": "its imports, which a start without inner TLS is spared",
    "serving/proxy/forwarding/redirect.py": "a handler in front of any other",
}
RINGS = {"home", "simulator", "dashboard", "cli"}
DAEMONS = {"activator", "autoscaler", "controller", "extender", "nodegroup", "queueproxy"}


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


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


def small_files() -> set[str]:
    """Files of at most 60 lines that one file imports."""
    importers = Counter(target for targets in import_graph().values() for target in targets)
    return {
        named(path)
        for path in product_files()
        if path.name not in _CONVENTIONAL
        and line_count(path) <= SMALL_LINES_MAX
        and importers[".".join(PurePath(named(path)).with_suffix("").parts)] == 1
    }


def folders() -> Counter[str]:
    """The number of modules in each folder."""
    return Counter(named(path.parent) for path in product_files() if path.name != "__init__.py")


def base_names() -> Counter[str]:
    return Counter(path.name for path in product_files() if path.name not in _CONVENTIONAL)


def numbers() -> dict[str, float]:
    """The numbers that ``make check`` prints."""
    counts = [line_count(path) for path in product_files()]
    return {
        "lines": sum(counts),
        "files": len(counts),
        "mean lines": round(sum(counts) / len(counts)),
        "files in the largest folder": max(folders().values()),
        "small files with one importer": len(small_files()),
        "circles between folders": len(circles(folder_graph())),
    }


def test_the_house_does_not_grow() -> None:
    found = numbers()
    assert found["lines"] <= LINES_MAX + sum(lines for lines, _ in FEATURES.values())
    assert found["files"] <= FILES_MAX + sum(files for _, files in FEATURES.values())
    assert found["mean lines"] >= MEAN_LINES_MIN


def test_no_folder_is_crowded() -> None:
    assert {name: count for name, count in folders().items() if count > FOLDER_FILES_MAX} == {}


def test_small_files_have_a_reason() -> None:
    assert sorted(small_files() - SMALL_FILES.keys()) == []


def test_every_reason_is_still_needed() -> None:
    assert sorted(SMALL_FILES.keys() - small_files()) == []


def test_names_of_files_say_which_one() -> None:
    assert {name: count for name, count in base_names().items() if count > BASE_NAME_MAX} == {}


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


if __name__ == "__main__":
    for name, value in numbers().items():
        print(f"{name}: {value:,}")  # noqa: T201 - `make check` shows them
