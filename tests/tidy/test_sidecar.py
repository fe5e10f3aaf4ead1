"""Imports of the queue-proxy, which add to the start time of every pod."""

import subprocess
import sys

import pytest

from tests.tidy.sources import ROOT

SIDECAR_FOLDERS = (
    "serving/core/model",
    "serving/net/proxy",
    "serving/queueproxy",
    "serving/core/traffic",
    "serving/net/wire",
)
HEAVY = (
    *("numpy", "scipy", "yaml", "click", "rich"),
    *("aiohttp", "kubernetes", "opencensus", "opentelemetry", "prometheus_client"),
)


# Modules needed later or never; each would delay the start of a pod.
LATE = ("websockets", "serving.net.proxy.http2", "urllib", "email", "pathlib", "json", "serving.net.proxy.tls")

# Modules that the import of each daemon loads, with room for a few: the time of an import depends on the machine, their
# number does not. The entries core, net, nodes and tools are a module each.
MODULES_MAX = {
    # All with the owners of their tasks.
    "serving.queueproxy.main": 230,
    # With the names of clients for pods, the records of requests, which the first request may need, announced pods, and
    # ScaledWorkloads.
    "serving.activator.main": 540,
    # With goals for latency and budgets, which any revision may have at any time, and announced pods.
    "serving.autoscaler.main": 680,
    # With apps that are their own queue-proxy, which any revision may have, and ScaledWorkloads with the routes that
    # make them.
    "serving.controller.main": 528,
    "serving.nodes.nodegroup.main": 470,
    "serving.nodes.extender.main": 490,
    # With comparisons of revisions and costs, which any page may ask for.
    "serving.tools.dashboard.main": 532,
    # With the times of logs and the claims of pods, which are kept from the first second on, the text of budgets among
    # the settings, and the order of starts, the Pod Security Standards, the bound of variables, and ScaledWorkloads
    # with the routes that
    # make them.
    "serving.home.main": 836,
    "serving.tools.cli.main": 80,
}


def heavy_modules_after(statement: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """The heavy packages that a fresh interpreter has loaded after a statement."""
    program = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set({heavy!r}) & set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def sidecar_modules() -> list[str]:
    """All modules that a queue-proxy may load, by full name."""
    paths = [path for folder in SIDECAR_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.name != "__init__.py"]


def test_sidecar_loads_no_heavy_package() -> None:
    assert heavy_modules_after("\n".join(f"import {name}" for name in sidecar_modules())) == []


def test_sidecar_start_loads_no_late_module() -> None:
    assert heavy_modules_after("import serving.queueproxy.main", LATE) == []


def test_sidecar_modules_include_meter_and_admission() -> None:
    assert {"serving.core.traffic.meter", "serving.core.traffic.admission"} <= set(sidecar_modules())


def test_rule_detects_a_heavy_package() -> None:
    assert heavy_modules_after("import yaml") == ["yaml"]


@pytest.mark.parametrize(("module", "modules_max"), MODULES_MAX.items())
def test_daemon_import_is_within_its_module_budget(module: str, modules_max: int) -> None:
    program = f"import sys\nbefore = set(sys.modules)\nimport {module}\nprint(len(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= modules_max, f"raise MODULES_MAX of {module} only for a reason that is worth its start"
