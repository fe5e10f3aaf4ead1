"""Each change in CONTRIBUTING.md needs all places named there; a test fails for each forgotten one."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.tidy.sources import ROOT

FOLDERS = ("bench", "config", "docs", "examples", "serving", "tests")
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md", "pyproject.toml")
CONFIG = "make config"
# What `make config` writes.
GENERATED = re.compile(r"config/config-.*\.yaml|docs/(settings|metrics|kubernetes-reference)\.md")
TEST_CONFIG = "tests/tidy/test_config.py"
UNUSED = "tests/tidy/test_unused.py::test_every_public_name_is_used"
RUN_CONFIG = "run `make config`"

ANCHOR_OF_POTS = "KINDS: tuple[Kind, ...] = (\n"
TEAPOT = """apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: teapots.serving.dev}
spec:
  group: serving.dev
  names: {kind: Teapot, plural: teapots, singular: teapot, shortNames: []}
  scope: Namespaced
  versions:
    - name: v1alpha1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {namespace: {type: string}}}
            status: {type: object}
"""
TRIGGERS = "serving/core/scaling/policies/triggertypes.py"
LOAD = "serving/core/model/loadmetric.py"
CLOUDS = "serving/nodes/nodegroup/io/clouds"
STAGES = "tests/conformance/cloud/adapters.py"
CLOUD_SUITE = "tests/conformance/cloud/test_cloud.py"
DOES_NOT_GROW = "    async def increase(self, group: str, count: int) -> None:\n        return\n"
MAPPING = "serving/controller/routes/domain_mapping.py"
KNATIVE = "serving/core/model/knative.py"
FIELDS_TEST = "tests/unit/config/test_crd_fields.py"
STATUSES_TEST = "tests/unit/config/test_crd_statuses.py"


class Edit(msgspec.Struct, frozen=True):
    """A file, a text in it, and its replacement. A file without a text is new."""

    path: str
    before: str
    after: str


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a change: some edits, or `make config`. Without it the test ``guard`` fails with the text ``says``."""

    edits: tuple[Edit, ...] = ()
    command: str = ""
    guard: str
    says: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change; ``row`` is its first column in CONTRIBUTING.md. Without ``first`` no place can be forgotten."""

    row: str
    first: tuple[Edit, ...] = ()
    places: tuple[Place, ...]


def new_setting(line: str) -> Edit:
    """A setting of the autoscaler at the end of its record."""
    anchor = '    def check(self) -> Iterator[Clash]:\n        """Yield contradictions between fields: the target'
    meaning = '    """Pods beside those. Default: ours, 0."""\n\n'
    return Edit("serving/core/settings/autoscaler.py", anchor, f"    {line}\n{meaning}{anchor}")


CHANGES = (
    Change(
        row="a default",
        first=(
            Edit(
                "serving/core/settings/autoscaler.py",
                'Knob(key="max-scale-limit", unit=COUNT, low=0, live=True)] = 1000\n',
                'Knob(key="max-scale-limit", unit=COUNT, low=0, live=True)] = 20000\n',
            ),
        ),
        places=(Place(command=CONFIG, guard=TEST_CONFIG, says=RUN_CONFIG),),
    ),
    Change(
        row="a setting",
        first=(new_setting('break_count: Annotated[int, Knob(key="break-count", unit=COUNT, low=0)] = 0'),),
        places=(Place(command=CONFIG, guard=TEST_CONFIG, says=RUN_CONFIG),),
    ),
    Change(
        row="whether a setting follows its ConfigMap",
        first=(
            Edit(
                "serving/core/settings/autoscaler.py",
                'Knob(key="decisions-kept", unit=COUNT, low=1, high=10_000)',
                'Knob(key="decisions-kept", unit=COUNT, low=1, high=10_000, live=True)',
            ),
        ),
        places=(Place(command=CONFIG, guard=TEST_CONFIG, says=RUN_CONFIG),),
    ),
    Change(
        row="a knob of a revision",
        first=(
            new_setting(
                'spare_scale: Annotated[int, Knob(key="spare", unit=COUNT, low=0, annotation="spare-scale")] = 0'
            ),
        ),
        places=(
            Place(
                edits=(
                    Edit(
                        "serving/core/scaling/resolve.py",
                        "        min_scale=own.min_scale,\n",
                        "        min_scale=own.min_scale + own.spare_scale,\n",
                    ),
                ),
                guard="tests/unit/core/scaling/test_resolve.py",
                says="serving/core/scaling/resolve.py does not use own.spare_scale",
            ),
            Place(command=CONFIG, guard=TEST_CONFIG, says=RUN_CONFIG),
        ),
    ),
    Change(
        row="a field of a custom resource",
        places=(
            Place(
                edits=(
                    Edit(
                        "config/crd/domainmapping.yaml",
                        "                    secretName:\n",
                        "                    minVersion:\n                      type: string\n                    secretName:\n",
                    ),
                ),
                guard=FIELDS_TEST,
                says="spec.tls.minVersion: a field of DomainMappingFields, but not in config/crd",
            ),
            Place(
                edits=(Edit(KNATIVE, "    secretName: str\n", "    secretName: str\n    minVersion: str\n"),),
                guard=FIELDS_TEST,
                says="spec.tls.minVersion: in config/crd, but no field of DomainMappingFields",
            ),
            Place(
                edits=(
                    Edit(
                        MAPPING,
                        '_spec_of(mapping).get("tls"):\n        reason',
                        '_spec_of(mapping).get("tls", {}).get("minVersion"):\n        reason',
                    ),
                ),
                guard=FIELDS_TEST,
                says="MappingCertificate.minVersion",
            ),
        ),
    ),
    Change(
        row="a kind (CRD)",
        places=(
            Place(
                edits=(Edit("config/crd/teapot.yaml", "", TEAPOT),),
                guard="tests/unit/home/schemas/test_crds.py::test_every_kind_of_ours_is_defined",
                says="teapots.serving.dev",
            ),
            Place(
                edits=(
                    Edit(
                        "serving/net/cluster/kinds.py",
                        ANCHOR_OF_POTS,
                        'TEAPOT = _kind(OWN_API_VERSION, "Teapot", "teapots", durable=True)\n\n'
                        f"{ANCHOR_OF_POTS}    TEAPOT,\n",
                    ),
                ),
                guard="tests/unit/home/schemas/test_crds.py",
                says="KINDS in serving/net/cluster/kinds.py has no serving.dev/v1alpha1/Teapot",
            ),
            Place(
                edits=(
                    Edit(
                        FIELDS_TEST,
                        "    CLUSTER_DOMAIN_CLAIM: DomainClaimFields,\n",
                        '    CLUSTER_DOMAIN_CLAIM: DomainClaimFields,\n    next(one for one in crds() if one.name == "Teapot"): DomainClaimFields,\n',
                    ),
                ),
                guard=FIELDS_TEST,
                says="test_each_kind_has_a_record",
            ),
            Place(
                edits=(
                    Edit(
                        STATUSES_TEST,
                        "    SERVING_SERVICE: service,\n",
                        "    SERVING_SERVICE: service,\n    next(one for one in crds() if one.name == 'Teapot'): dict,\n",
                    ),
                ),
                guard=f"{STATUSES_TEST}::test_each_kind_has_a_writer",
                says="Teapot",
            ),
        ),
    ),
    Change(
        row="an annotation's name",
        first=(Edit(KNATIVE, '/placeholder-page"', '/waiting-page"'),),
        places=(
            Place(
                edits=(
                    Edit("docs/requests.md", "| `serving.dev/placeholder-page` |", "| `serving.dev/waiting-page` |"),
                    Edit("docs/requests.md", "`serving.dev/placeholder-page: ", "`serving.dev/waiting-page: "),
                ),
                guard="tests/tidy/test_vocabulary.py",
                says="docs/requests.md: serving.dev/placeholder-page: not in serving/core/model/knative.py",
            ),
        ),
    ),
    Change(
        row="a metric",
        first=(
            Edit(
                "serving/net/metrics/names.py",
                '    _histogram(\n        "serving_request_queue_seconds",',
                '    _counter("serving_biscuits_total", "Biscuits.", *REVISION_LABELS),\n'
                '    _histogram(\n        "serving_request_queue_seconds",',
            ),
        ),
        places=(Place(command=CONFIG, guard="tests/tidy/test_metrics.py", says=RUN_CONFIG),),
    ),
    Change(
        row="a cloud",
        first=(
            Edit(
                f"{CLOUDS}/sky.py",
                "",
                "from serving.nodes.nodegroup.io.clouds.memory import MemoryCloud\n\n\nclass SkyCloud(MemoryCloud):\n"
                f"{DOES_NOT_GROW}",
            ),
        ),
        places=(
            Place(
                edits=(
                    Edit(
                        f"{CLOUDS}/choice.py",
                        "from serving.core.settings.nodegroup import NodeGroupDaemonSettings\n",
                        "from serving.nodes.nodegroup.io.clouds.sky import SkyCloud\n"
                        "from serving.core.settings.nodegroup import NodeGroupDaemonSettings\n",
                    ),
                    Edit(
                        f"{CLOUDS}/choice.py",
                        '    "memory": lambda',
                        '    "sky": lambda _: nullcontext(SkyCloud({})),\n    "memory": lambda',
                    ),
                ),
                guard=f"{CLOUD_SUITE}::test_every_cloud_can_be_chosen_and_has_a_stage_here",
                says="sky",
            ),
            Place(
                edits=(Edit("serving/core/settings/nodegroup.py", '"local", "memory")', '"local", "memory", "sky")'),),
                guard=f"{CLOUD_SUITE}::test_every_cloud_can_be_chosen_and_has_a_stage_here",
                says="sky",
            ),
            Place(
                edits=(
                    Edit(STAGES, '    "memory": memory,\n', '    "memory": memory,\n    "sky": sky,\n'),
                    Edit(
                        STAGES,
                        "@contextlib.asynccontextmanager\nasync def local()",
                        "@contextlib.asynccontextmanager\nasync def sky() -> AsyncIterator[MadeCloud]:\n"
                        '    async with opened(cloud_provider="sky") as cloud:\n        cloud.groups["g"] = SIZE\n'
                        '        yield MadeCloud(cloud=cloud, group="g", machines=[machine(name) for name in "abc"])\n\n\n'
                        "@contextlib.asynccontextmanager\nasync def local()",
                    ),
                ),
                guard=f"{CLOUD_SUITE}::test_every_cloud_can_be_chosen_and_has_a_stage_here",
                says="sky",
            ),
            Place(
                edits=(Edit(f"{CLOUDS}/sky.py", DOES_NOT_GROW, "    pass\n"),),
                guard=f"{CLOUD_SUITE}::test_growing_raises_the_target",
                says="test_growing_raises_the_target[sky] FAILED",
            ),
            Place(command=CONFIG, guard=TEST_CONFIG, says=RUN_CONFIG),
        ),
    ),
    Change(
        row="a node score",
        first=(
            Edit(
                "serving/nodes/placement/scores/tallest.py",
                "",
                "from typing import ClassVar\n\nfrom serving.nodes.placement.scores.fit import LeastRequested\n\n\n"
                'class Tallest(LeastRequested):\n    name: ClassVar[str] = "Tallest"\n',
            ),
        ),
        places=(
            Place(
                edits=(
                    Edit(
                        "serving/nodes/placement/scores/score.py",
                        "from serving.core.settings.placement import PlacementSettings\n",
                        "from serving.nodes.placement.scores.tallest import Tallest\n"
                        "from serving.core.settings.placement import PlacementSettings\n",
                    ),
                    Edit(
                        "serving/nodes/placement/scores/score.py",
                        "    LeastRequested,\n",
                        "    LeastRequested,\n    Tallest,\n",
                    ),
                ),
                guard="tests/unit/nodes/placement/scores/test_provider.py::test_every_score_is_in_the_table",
                says="Tallest",
            ),
        ),
    ),
    Change(
        row="a trigger type",
        first=(
            Edit(
                TRIGGERS,
                "class FixedStepPolicy:",
                "class ZealPolicy(OccupancyPolicy):\n    pass\n\n\nclass FixedStepPolicy:",
            ),
        ),
        places=(
            Place(
                edits=(
                    Edit(
                        TRIGGERS,
                        '    "occupancy": OccupancyPolicy(),\n',
                        '    "occupancy": OccupancyPolicy(),\n    "zeal": ZealPolicy(),\n',
                    ),
                ),
                guard=UNUSED,
                says=f"{TRIGGERS}: ZealPolicy",
            ),
        ),
    ),
    Change(
        row="a load metric",
        first=(
            Edit(
                LOAD,
                "QUEUE_LENGTH = _gauge_metric(",
                'GPU_USE = LoadMetric(name="gpu-use", unit="percent", of_stat=_requests, target_default=10.0)\n\n'
                "QUEUE_LENGTH = _gauge_metric(",
            ),
        ),
        places=(
            Place(
                edits=(Edit(LOAD, "        QUEUE_LENGTH,\n", "        QUEUE_LENGTH,\n        GPU_USE,\n"),),
                guard=UNUSED,
                says=f"{LOAD}: GPU_USE",
            ),
        ),
    ),
    Change(
        row="a CLI command",
        first=(
            Edit(
                "serving/tools/cli/salute.py",
                "",
                '"""A salute."""\n\nimport click\n\n\n@click.command()\ndef salute() -> None:\n    """Salute."""\n',
            ),
        ),
        places=(
            Place(
                edits=(
                    Edit(
                        "serving/tools/cli/main.py",
                        '        "up": (',
                        '        "salute": ("serving.tools.cli.salute:salute", "Salute."),\n        "up": (',
                    ),
                ),
                guard=UNUSED,
                says="serving/tools/cli/salute.py: salute",
            ),
        ),
    ),
)


class Tree:
    """A copy of the project that takes changes and drops them again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, folder / name)
        self._before: dict[Path, str | None] = {}

    def make(self, edit: Edit) -> None:
        path = self.folder / edit.path
        text = path.read_text() if path.exists() else ""
        self._before.setdefault(path, text if path.exists() else None)
        assert text.count(edit.before) == 1 or not (text or edit.before), (
            f"{edit.path} has {edit.before!r} {text.count(edit.before)} times"
        )
        path.write_text(text.replace(edit.before, edit.after) if edit.before else edit.after)

    def make_config(self) -> None:
        """The commands of `make config`, as the Makefile has them."""
        recipe = re.search(r"^config: .*\n((?:\t.*\n)+)", (self.folder / "Makefile").read_text(), re.MULTILINE)
        assert recipe
        for path in self.folder.rglob("*"):
            if GENERATED.fullmatch(path.relative_to(self.folder).as_posix()):
                self._before.setdefault(path, path.read_text())
        for line in recipe[1].splitlines():
            command = (
                line.strip()
                .replace("$(BIN)/serving", f"{sys.executable} -m serving")
                .replace("$(BIN)/python", sys.executable)
            )
            assert self.run("sh", "-c", command).returncode == 0, command

    def drop(self) -> None:
        for path, text in self._before.items():
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        self._before.clear()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    def test(self, *tests: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-vv",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "-m",
            "not slow",
            *tests,
        )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def tree(copied: Tree) -> Iterator[Tree]:
    yield copied
    copied.drop()


def make(tree: Tree, *changes: Change, forgotten: Place | None = None) -> None:
    places = [place for change in changes for place in change.places if place is not forgotten]
    for edit in (
        *(one for change in changes for one in change.first),
        *(one for place in places for one in place.edits),
    ):
        tree.make(edit)
    # It reads what the edits have made.
    if any(place.command for place in places):
        tree.make_config()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_changes_need_the_places_that_are_named_and_no_others(tree: Tree) -> None:
    """All at once: the changes are independent."""
    make(tree, *CHANGES)
    result = tree.test(*dict.fromkeys(place.guard for change in CHANGES for place in change.places))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "forgotten"),
    [pytest.param(change, place, id=f"{change.row}: {place.says}") for change in CHANGES for place in change.places],
)
def test_a_place_that_is_forgotten_fails_a_test_that_names_it(tree: Tree, change: Change, forgotten: Place) -> None:
    make(tree, change, forgotten=forgotten)
    result = tree.test(forgotten.guard)
    assert result.returncode != 0, result.stdout
    assert forgotten.says in result.stdout + result.stderr


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.row)
def test_contributing_names_the_places(change: Change) -> None:
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    edits = [*change.first, *(edit for place in change.places for edit in place.edits)]
    unnamed = {
        edit.path
        for edit in edits
        if not {edit.path, f"{Path(edit.path).parent}/", Path(edit.path).name} & words(rows[change.row])
    }
    assert unnamed == set()
    assert any(place.command for place in change.places) == (f"`{CONFIG}`" in rows[change.row])


def words(row: str) -> set[str]:
    """The words in backquotes."""
    return set(re.findall(r"`([^`]+)`", row))
