"""Container images: the recipe, and in slow tests the built file systems."""

import ast
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml

from release import image
from release.build import SIZE_MAX, configuration
from serving.home.supervisor.children import ALLOCATOR
from tests.tidy.sources import ROOT, is_type_checking_block, package_of
from tests.tidy.test_sidecar import HEAVY

RECIPE = (ROOT / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
GROUP = GROUPS["queue-proxy"]
# The first test of a target downloads the packages of its image.
_BUILDS = pytest.mark.timeout(900)
# Imported only if the operator has installed them: cloud clients, and scipy for the placement component.
OPTIONAL = {"awscrt", "grpc", "google", "scipy"}

# The modules that run in each image.
PROGRAMS = {
    "queue-proxy": ("serving.queueproxy.main",),
    "placement": ("serving.nodes.extender.main", "serving.net.metrics.otlp"),
    "daemons": (
        *(
            f"serving.{name}.main"
            for name in ("activator", "autoscaler", "controller", "tools.dashboard", "nodes.nodegroup", "queueproxy")
        ),
        "serving.net.metrics.otlp",
    ),
}


def stage(name: str) -> str:
    """The instructions of a stage, one per line."""
    joined = RECIPE.replace("\\\n", " ")
    match_ = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", joined, re.MULTILINE | re.DOTALL)
    assert match_, name
    return match_[1]


def project_packages(target: str = "queue-proxy") -> set[str]:
    """The project packages in an image."""
    return set(image.PACKAGES[target].split())


def distributions(requirements: list[str]) -> set[str]:
    """The distributions of some requirements, with transitive dependencies."""
    remaining, results = [re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in requirements], set[str]()
    while remaining:
        name = remaining.pop()
        if name.lower() in results:
            continue
        results.add(name.lower())
        needed = importlib.metadata.requires(name) or ()
        remaining += [re.split(r"[^A-Za-z0-9._-]", text)[0] for text in needed if "extra ==" not in text]
    return results


@functools.cache
def imports_of(path: Path) -> list[str]:
    """Modules that a file imports at run time, also inside functions."""
    tree, results = ast.parse(path.read_text()), list[str]()
    typed = {node for block in ast.walk(tree) if is_type_checking_block(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in typed:
            continue
        if isinstance(node, ast.Import):
            results += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            results.append(node.module)
    return results


def reached_from(module: str) -> set[str]:
    """All modules that a module may import, directly or through project modules."""
    remaining, results = [module], set[str]()
    while remaining:
        name = remaining.pop()
        if name in results:
            continue
        results.add(name)
        file = Path(ROOT, *name.split(".")).with_suffix(".py")
        if name.startswith("serving.") and file.exists():
            remaining += imports_of(file)
    return results


def pins(path: Path) -> dict[str, str]:
    """The pinned versions in a lock or constraints file, by name."""
    findalls = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", path.read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in findalls}


@pytest.mark.parametrize("target", PROGRAMS)
def test_image_requirements_are_project_dependencies(target: str) -> None:
    project = PROJECT["project"]
    assert set(GROUPS[target]) <= {*project["dependencies"], *chain(*project["optional-dependencies"].values())}


@pytest.mark.parametrize("target", PROGRAMS)
def test_image_lock_has_every_imported_package(target: str) -> None:
    owners = importlib.metadata.packages_distributions()
    installed = pins(image.LOCKS / f"{target}.txt").keys()
    imported = {name for program in PROGRAMS[target] for name in reached_from(program)}
    foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"serving"} - OPTIONAL
    assert foreign
    assert {name for name in foreign if not {normal(text) for text in owners.get(name, ())} & installed} == set()


@pytest.mark.parametrize("lock", [*PROGRAMS, "serving"])
def test_lock_pins_constraint_versions_with_hashes(lock: str) -> None:
    path = image.LOCKS / f"{lock}.txt"
    constraints = pins(ROOT / "constraints.txt")
    # Packages such as colorama are for other systems, and not in the constraints.
    assert {name: version for name, version in pins(path).items() if constraints.get(name, version) != version} == {}
    blocks = re.split(r"\n(?=\S)", path.read_text().strip())
    assert all("--hash=sha256:" in block for block in blocks)
    wanted = GROUPS[lock] if lock in GROUPS else PROJECT["project"]["dependencies"]
    assert {normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in wanted} <= pins(path).keys()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("target", PROGRAMS)
def test_image_contains_exactly_the_imported_project_packages(target: str) -> None:
    imported = {name for program in PROGRAMS[target] for name in reached_from(program)}
    own = {package_of(name.split(".")) for name in imported if name.startswith("serving.")}
    assert own == project_packages(target)
    assert own.isdisjoint({"home", "tools/cli", "tools/simulator"})


def test_queue_proxy_requirements_have_no_heavy_packages() -> None:
    assert distributions(GROUP).isdisjoint({*HEAVY, "prometheus-client", "opencensus", "google-api-core"})


@pytest.mark.parametrize("daemon", ["activator", "autoscaler", "controller", "nodes.nodegroup", "queueproxy"])
def test_daemon_does_not_import_rarely_used_packages(daemon: str) -> None:
    # numpy takes 10 MiB; cryptography, for systems with inner TLS, delays the start by 60 ms.
    unused = {"cryptography", "google", "grpc", "kubernetes", "numpy", "opencensus", "scipy", "sqlite3"}
    program = f"import sys, serving.{daemon}.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert set(done.stdout.split()) & unused == set()


def test_base_image_argument_is_pinned_by_digest() -> None:
    argument = re.search(r"^ARG PYTHON=(\S+)$", RECIPE, re.MULTILINE)
    assert argument
    assert re.search(r"@sha256:[0-9a-f]{64}$", argument[1])
    bases = re.findall(r"^FROM (\S+) AS (\S+)$", RECIPE, re.MULTILINE)
    stages = {name for _, name in bases}
    assert {base for base, _ in bases} - stages == {"${PYTHON}", "scratch"}


def test_release_workflow_uses_the_base_image() -> None:
    (digest,) = re.findall(r"^ARG PYTHON=(\S+)$", RECIPE, re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]
    assert {workflow["container"]["image"], workflow["env"]["SERVING_BUILD_IMAGE"]} == {digest}


def test_workflows_are_valid_and_call_existing_make_targets() -> None:
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, files)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    called = {
        target for file in files for target in re.findall(r"(?:: |^ +)make ([a-z-]+)", file.read_text(), re.MULTILINE)
    }
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert called - targets == set()
    assert called


@pytest.mark.parametrize("target", ["queue-proxy", "placement", "daemons"])
def test_image_target_copies_its_root_and_runs_unprivileged(target: str) -> None:
    assert stage(target).splitlines()[0] == f"COPY --from={target}-root /rootfs /"
    assert f"FROM runtime AS {target}\n" in RECIPE
    assert "USER 65532:65532\n" in stage("runtime")


def test_runtime_stage_sets_allocator_variables() -> None:
    assert all(f"{name}={value}" in stage("runtime").split() for name, value in ALLOCATOR.items())


@pytest.mark.parametrize("target", PROGRAMS)
def test_image_archive_configuration_equals_the_recipe(target: str) -> None:
    entry = configuration(target)
    assert entry["User"] == "65532:65532"
    assert "PATH=/opt/serving/bin:/usr/local/bin:/usr/bin" in entry["Env"]
    assert all(f"{name}={value}" in entry["Env"] for name, value in ALLOCATOR.items())
    assert entry["Cmd"][0] == "python"


def test_default_image_target_is_daemons() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)$", RECIPE, re.MULTILINE)[-1] == "daemons"


@pytest.fixture(scope="module", params=["queue-proxy", "daemons"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An image target, and the root of its file system."""
    target: str = request.param
    folder = tmp_path_factory.mktemp(target)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    image.build(target, next(folder.glob("*.whl")), folder / "root")
    return target, folder / "root"


@pytest.mark.slow
@_BUILDS
def test_image_contains_listed_packages_and_no_shell(built: tuple[str, Path]) -> None:
    target, root = built
    listed = json.loads((root / image.SBOM).read_text())["components"]
    (packages,) = root.glob("opt/serving/lib/python*/site-packages")
    present = {normal(path.name.partition("-")[0]) for path in packages.glob("*.dist-info")}
    assert present == {normal(entry["name"]) for entry in listed}
    assert not [name for name in ("bin/sh", "usr/bin/sh", "usr/bin/apt", "usr/bin/dpkg") if (root / name).exists()]
    assert list((root / "var/lib/dpkg/status.d").iterdir())
    assert [path for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000] == []
    package = packages / "serving"
    modules = [path.relative_to(package).parts for path in package.rglob("*.py") if path.name != "__init__.py"]
    assert {package_of(("serving", *parts)) for parts in modules if len(parts) > 1} == project_packages(target)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    assert size <= SIZE_MAX[target]


@pytest.mark.slow
@_BUILDS
def test_image_files_contain_no_build_folder(built: tuple[str, Path]) -> None:
    _, root = built
    packages = root / "opt"
    folders = (str(root.parent).encode(), str(ROOT).encode(), tempfile.gettempdir().encode() + b"/tmp")
    assert [
        path
        for path in packages.rglob("*")
        if path.is_file() and any(folder in path.read_bytes() for folder in folders)
    ] == []


def modules_of(target: str) -> list[str]:
    kubernetes = ["kubernetes.aio.client", "kubernetes.aio.config", "kubernetes.config"]
    return [*PROGRAMS[target], *(kubernetes if target == "daemons" else ())]


@pytest.mark.slow
@_BUILDS
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_programs_of_an_image_can_be_imported_in_it(built: tuple[str, Path]) -> None:
    target, root = built
    program = "; ".join(f"import {name}" for name in modules_of(target))
    command = ["chroot", "--userspec=65532:65532", str(root), "/opt/serving/bin/python", "-c", program]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
    )
    assert (done.returncode, done.stderr) == (0, "")
