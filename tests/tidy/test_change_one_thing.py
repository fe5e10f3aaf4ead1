"""The table "Change one thing" of CONTRIBUTING: each change takes effect on a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tidy.sources import ROOT, named, product_files

Edit = tuple[str, str, str]
"""A file, a text in it, and what stands there after the change."""


class Copy:
    """A copy of the product that a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("serving", "config"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, path: str, text: str) -> None:
        target = self.folder / path
        assert not target.exists(), f"{path} is there already"
        target.write_text(text)

    def edit(self, path: str, before: str, after: str) -> None:
        target = self.folder / path
        text = target.read_text()
        assert text.count(before) == 1, f"{path} has {before!r} {text.count(before)} times"
        target.write_text(text.replace(before, after))

    def run(self, *command: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_new_setting_needs_one_field(copy: Copy) -> None:
    copy.edit(
        "serving/core/settings/autoscaler.py",
        '    def check(self) -> Iterator[Clash]:\n        """Yield contradictions between fields: target',
        '    coffee_break_s: Annotated[float, Knob(key="coffee-break", unit=DURATION, low=1)] = 5.0\n    """Length of a break."""\n\n'
        '    def check(self) -> Iterator[Clash]:\n        """Yield contradictions between fields: target',
    )
    assert re.search(r"coffee-break: \"?5s", copy.run("-m", "serving", "config", "defaults"))
    assert "`coffee-break`" in copy.run("-m", "serving", "config", "defaults", "--page")


def test_new_revision_annotation_needs_one_field(copy: Copy) -> None:
    copy.edit(
        "serving/core/settings/autoscaler.py",
        '    def check(self) -> Iterator[Clash]:\n        """Yield contradictions between fields: target',
        '    spare_scale: Annotated[int, Knob(key="spare", unit=COUNT, annotation="spare-scale")] = 0\n    """Spare pods."""\n\n'
        '    def check(self) -> Iterator[Clash]:\n        """Yield contradictions between fields: target',
    )
    script = (
        "from serving.core.settings.annotations import read_annotations as read\n"
        "from serving.core.settings.autoscaler import AutoscalerSettings\n"
        "from serving.core.settings.knob import live_fields\n"
        "settings = AutoscalerSettings()\n"
        "own = read({'autoscaling.knative.dev/spareScale': '3'}, settings).scaling.applied_to(settings)\n"
        "print(own.spare_scale, 'spare_scale' in live_fields(AutoscalerSettings))"
    )
    assert copy.run("-c", script) == "3 True\n"


def test_new_node_score_needs_one_file_and_one_line(copy: Copy) -> None:
    source = (copy.folder / "serving/nodes/placement/scores/fit.py").read_text()
    copy.add("serving/nodes/placement/scores/tallest.py", source.replace("class LeastRequested", "class Tallest"))
    copy.edit(
        "serving/nodes/placement/scores/tallest.py",
        'name: ClassVar[str] = "LeastRequested"',
        'name: ClassVar[str] = "Tallest"',
    )
    copy.edit("serving/nodes/placement/scores/score.py", "    LeastRequested,\n", "    LeastRequested,\n    Tallest,\n")
    copy.edit(
        "serving/nodes/placement/scores/score.py",
        "from serving.core.settings.placement import PlacementSettings\n",
        "from serving.nodes.placement.scores.tallest import Tallest\nfrom serving.core.settings.placement import PlacementSettings\n",
    )
    script = (
        "from serving.nodes.placement.scores.provider import Scorer\n"
        "from serving.core.settings.placement import PlacementSettings\n"
        "Scorer(PlacementSettings(score_weights='Tallest=1'))\n"
        "print('known')"
    )
    assert copy.run("-c", script) == "known\n"


def test_new_trigger_type_needs_one_class_and_one_line(copy: Copy) -> None:
    path = "serving/core/scaling/policies/triggertypes.py"
    copy.edit(
        path, "class FixedStepPolicy:", "class ZealPolicy(OccupancyPolicy):\n    pass\n\n\nclass FixedStepPolicy:"
    )
    copy.edit(
        path,
        '    "occupancy": OccupancyPolicy(),\n',
        '    "occupancy": OccupancyPolicy(),\n    "zeal": ZealPolicy(),\n',
    )
    script = (
        "import asyncio\n"
        "from serving.home.admission.admission import admit\n"
        "from serving.net.cluster.kinds import SCALING_POLICY\n"
        "from serving.home.store.memory import MemoryCluster\n"
        "trigger = {'type': 'zeal', 'usagePercent': 50, 'limitPercent': 90, 'timeSeconds': 10}\n"
        "spec = {'targetRef': {'kind': 'Service', 'name': 'hello'}, 'up': {'triggers': [trigger]}}\n"
        "body = {'apiVersion': 'serving.dev/v1alpha1', 'kind': 'ScalingPolicy',\n"
        "        'metadata': {'namespace': 'default', 'name': 'p'}, 'spec': spec}\n"
        "try:\n"
        "    asyncio.run(MemoryCluster(admit=admit).create(SCALING_POLICY, body))\n"
        "    print('accepted')\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    assert copy.run("-c", script) == "accepted\n"


def test_new_load_metric_needs_one_record_and_its_entry(copy: Copy) -> None:
    path = "serving/core/model/loadmetric.py"
    copy.edit(
        path,
        "QUEUE_LENGTH = _gauge_metric(",
        'GPU_USE = LoadMetric(name="gpu-use", unit="percent", of_stat=_requests, target_default=10.0)\n\nQUEUE_LENGTH = _gauge_metric(',
    )
    copy.edit(path, "        QUEUE_LENGTH,\n", "        QUEUE_LENGTH,\n        GPU_USE,\n")
    script = (
        "from serving.core.scaling.resolve import resolve\n"
        "from serving.core.settings.annotations import read_annotations as read\n"
        "from serving.core.settings.autoscaler import AutoscalerSettings\n"
        "settings = AutoscalerSettings()\n"
        "found = read({'autoscaling.knative.dev/metric': 'gpu-use', 'autoscaling.knative.dev/target': '8'}, settings)\n"
        "spec = resolve(settings, found.scaling, container_concurrency=0, reachable=True)\n"
        "print(found.problems, spec.metric, spec.total_value)"
    )
    assert copy.run("-c", script) == "() gpu-use 8.0\n"


def test_new_prometheus_metric_needs_one_entry(copy: Copy) -> None:
    copy.edit(
        "serving/net/metrics/names.py",
        '    _histogram(\n        "serving_request_queue_seconds",',
        '    _counter("serving_biscuits_total", "Biscuits.", *REVISION_LABELS),\n'
        '    _histogram(\n        "serving_request_queue_seconds",',
    )
    assert "serving_biscuits_total" in copy.run("-m", "serving", "config", "metrics")


def test_new_command_needs_one_file_and_one_line(copy: Copy) -> None:
    copy.add(
        "serving/tools/cli/greet.py",
        '"""A greeting."""\n\nimport click\n\n\n@click.command()\ndef greet() -> None:\n    """Greet."""\n    print("hello")\n',
    )
    copy.edit(
        "serving/tools/cli/main.py",
        '        "up": (',
        '        "greet": ("serving.tools.cli.greet:greet", "Greet."),\n        "up": (',
    )
    assert copy.run("-m", "serving", "greet") == "hello\n"
    assert "Greet." in copy.run("-m", "serving", "--help")


def test_new_kind_needs_one_definition_and_one_line(copy: Copy) -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "teapots.serving.dev"},
        "spec": {
            "group": "serving.dev",
            "names": {"kind": "Teapot", "plural": "teapots", "singular": "teapot"},
            "scope": "Namespaced",
            "versions": [_version({"spouts": {"type": "integer", "minimum": 1}})],
        },
    }
    copy.add("config/crd/teapots.yaml", yaml.safe_dump(definition))
    copy.edit(
        "serving/net/cluster/kinds.py",
        "KINDS: tuple[Kind, ...] = (\n",
        'TEAPOT = Kind(group="serving.dev", version="v1alpha1", name="Teapot", plural="teapots", durable=True)\n\n'
        "KINDS: tuple[Kind, ...] = (\n    TEAPOT,\n",
    )
    script = (
        "import asyncio\n"
        "from serving.home.admission.admission import admit\n"
        "from serving.net.cluster.kinds import kind_of\n"
        "from serving.home.store.memory import MemoryCluster\n"
        "from serving.core.model.errors import Invalid\n"
        "async def run():\n"
        "    cluster = MemoryCluster(admit=admit)\n"
        "    kind = kind_of('serving.dev/v1alpha1', 'Teapot')\n"
        "    def pot(spouts):\n"
        "        return {'apiVersion': 'serving.dev/v1alpha1', 'kind': 'Teapot',\n"
        "                'metadata': {'namespace': 'default', 'name': 'pot'}, 'spec': {'spouts': spouts}}\n"
        "    try:\n"
        "        await cluster.create(kind, pot(0))\n"
        "    except Invalid as error:\n"
        "        print('spouts' in str(error))\n"
        "    await cluster.create(kind, pot(1))\n"
        "    print(len((await cluster.list(kind)).items))\n"
        "asyncio.run(run())"
    )
    assert copy.run("-c", script) == "True\n1\n"


def _version(fields: dict[str, Any]) -> dict[str, Any]:
    spec = {"type": "object", "properties": fields}
    always = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {**always, "spec": spec}}}
    return {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}


def places_of(pattern: str) -> list[str]:
    """Files of the product that contain a pattern."""
    return [named(path) for path in product_files() if re.search(pattern, path.read_text())]


def test_window_formula_is_defined_in_three_files() -> None:
    assert places_of(r"WEIGHTED_EXPONENTIAL\b") == [
        "serving/core/scaling/kpa/window.py",
        "serving/core/scaling/spec.py",
    ]
    assert places_of(r'"weighted-exponential"') == [
        "serving/core/scaling/spec.py",
        "serving/core/settings/annotations.py",
    ]


def test_only_the_command_line_imports_serving_home() -> None:
    """Another home needs a package beside serving/home and a command; no lower layer imports it."""
    outside = [place for place in places_of(r"\bserving\.home\b") if not place.startswith("serving/home/")]
    assert outside
    assert [place for place in outside if not place.startswith("serving/tools/cli/")] == []


def test_new_cloud_needs_one_registry_line_and_its_name(copy: Copy) -> None:
    copy.edit(
        "serving/nodes/nodegroup/io/clouds/choice.py",
        '    "memory": lambda',
        '    "trial": lambda _: nullcontext(MemoryCloud({})),\n    "memory": lambda',
    )
    copy.edit("serving/core/settings/nodegroup.py", '"local", "memory")', '"local", "memory", "trial")')
    script = (
        "import asyncio\n"
        "from serving.home.store.memory import MemoryCluster\n"
        "from serving.nodes.nodegroup.io.clouds.choice import CloudContext, opened_cloud\n"
        "from serving.core.settings.nodegroup import NodeGroupDaemonSettings\n"
        "async def run():\n"
        "    settings = NodeGroupDaemonSettings(cloud_provider='trial')\n"
        "    async with opened_cloud(CloudContext(settings=settings, cluster=MemoryCluster())) as cloud:\n"
        "        print(type(cloud).__name__)\n"
        "asyncio.run(run())"
    )
    assert copy.run("-c", script) == "MemoryCloud\n"
