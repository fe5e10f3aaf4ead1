"""The content of the images: by their recipe, and in slow tests by the file systems themselves."""

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
# The first test of a target waits for the packages of its image.
_BUILDS = pytest.mark.timeout(900)
# Imported only where the operator installed them: the cloud's own clients, and scipy for the component placement.
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
    """The instructions of one stage, a line each."""
    joined = RECIPE.replace("\\\n", " ")
    match_ = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", joined, re.MULTILINE | re.DOTALL)
    assert match_, name
    return match_[1]


def kept_packages(target: str = "queue-proxy") -> set[str]:
    """The packages of the project that an image keeps."""
    return set(image.PACKAGES[target].split())


def distributions(requirements: list[str]) -> set[str]:
    """All installed packages for some requirements, by import name."""
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
    """Modules that a file imports when it runs, inside functions too."""
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
    """All modules that a module may import, directly or by others of the project."""
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
    """The versions of a lock or of the constraints, by name."""
    findalls = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", path.read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in findalls}


@pytest.mark.parametrize("target", PROGRAMS)
def test_the_requirements_of_an_image_are_those_of_the_project(target: str) -> None:
    project = PROJECT["project"]
    assert set(GROUPS[target]) <= {*project["dependencies"], *chain(*project["optional-dependencies"].values())}


@pytest.mark.parametrize("target", PROGRAMS)
def test_an_image_has_every_package_that_its_programs_import(target: str) -> None:
    owners = importlib.metadata.packages_distributions()
    installed = pins(image.LOCKS / f"{target}.txt").keys()
    imported = {name for program in PROGRAMS[target] for name in reached_from(program)}
    foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"serving"} - OPTIONAL
    assert foreign
    assert {name for name in foreign if not {normal(text) for text in owners.get(name, ())} & installed} == set()


@pytest.mark.parametrize("lock", [*PROGRAMS, "serving"])
def test_a_lock_pins_what_ci_tests_each_with_hashes(lock: str) -> None:
    path = image.LOCKS / f"{lock}.txt"
    constraints = pins(ROOT / "constraints.txt")
    # colorama and the like: only for other systems, and not installed here.
    assert {name: version for name, version in pins(path).items() if constraints.get(name, version) != version} == {}
    blocks = re.split(r"\n(?=\S)", path.read_text().strip())
    assert all("--hash=sha256:" in block for block in blocks)
    wanted = GROUPS[lock] if lock in GROUPS else PROJECT["project"]["dependencies"]
    assert {normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in wanted} <= pins(path).keys()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("target", PROGRAMS)
def test_an_image_keeps_the_packages_that_its_programs_import(target: str) -> None:
    imported = {name for program in PROGRAMS[target] for name in reached_from(program)}
    own = {package_of(name.split(".")) for name in imported if name.startswith("serving.")}
    assert own == kept_packages(target)
    assert own.isdisjoint({"home", "tools/cli", "tools/simulator"})


def test_the_queue_proxy_installs_nothing_heavy() -> None:
    assert distributions(GROUP).isdisjoint({*HEAVY, "prometheus-client", "opencensus", "google-api-core"})


@pytest.mark.parametrize("daemon", ["activator", "autoscaler", "controller", "nodes.nodegroup", "queueproxy"])
def test_a_daemon_starts_without_packages_that_few_systems_use(daemon: str) -> None:
    # numpy is 10 MiB in memory; cryptography is for systems with inner TLS, which start 60 ms later.
    unused = {"cryptography", "google", "grpc", "kubernetes", "numpy", "opencensus", "scipy", "sqlite3"}
    program = f"import sys, serving.{daemon}.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert set(done.stdout.split()) & unused == set()


def test_the_base_is_pinned_by_a_digest_that_an_argument_replaces() -> None:
    argument = re.search(r"^ARG PYTHON=(\S+)$", RECIPE, re.MULTILINE)
    assert argument
    assert re.search(r"@sha256:[0-9a-f]{64}$", argument[1])
    bases = re.findall(r"^FROM (\S+) AS (\S+)$", RECIPE, re.MULTILINE)
    stages = {name for _, name in bases}
    assert {base for base, _ in bases} - stages == {"${PYTHON}", "scratch"}


def test_a_public_release_is_built_in_the_same_base() -> None:
    (digest,) = re.findall(r"^ARG PYTHON=(\S+)$", RECIPE, re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]
    assert {workflow["container"]["image"], workflow["env"]["SERVING_BUILD_IMAGE"]} == {digest}


def test_workflows_fit_their_schema_and_call_targets_that_exist() -> None:
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
def test_a_target_is_a_bare_root_without_rights(target: str) -> None:
    assert stage(target).splitlines()[0] == f"COPY --from={target}-root /rootfs /"
    assert f"FROM runtime AS {target}\n" in RECIPE
    assert "USER 65532:65532\n" in stage("runtime")


def test_all_images_keep_freed_memory_as_the_processes_of_one_machine_do() -> None:
    assert all(f"{name}={value}" in stage("runtime").split() for name, value in ALLOCATOR.items())


@pytest.mark.parametrize("target", PROGRAMS)
def test_an_archive_has_the_configuration_of_the_recipe(target: str) -> None:
    entry = configuration(target)
    assert entry["User"] == "65532:65532"
    assert "PATH=/opt/serving/bin:/usr/local/bin:/usr/bin" in entry["Env"]
    assert all(f"{name}={value}" in entry["Env"] for name, value in ALLOCATOR.items())
    assert entry["Cmd"][0] == "python"


def test_the_default_target_is_that_of_the_daemons() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)$", RECIPE, re.MULTILINE)[-1] == "daemons"


@pytest.fixture(scope="module", params=["queue-proxy", "daemons"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A target, and the root of its image."""
    target: str = request.param
    folder = tmp_path_factory.mktemp(target)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    image.build(target, next(folder.glob("*.whl")), folder / "root")
    return target, folder / "root"


@pytest.mark.slow
@_BUILDS
def test_an_image_holds_its_python_its_packages_and_nothing_to_log_in_with(built: tuple[str, Path]) -> None:
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
    assert {package_of(("serving", *parts)) for parts in modules if len(parts) > 1} == kept_packages(target)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    assert size <= SIZE_MAX[target]


@pytest.mark.slow
@_BUILDS
def test_an_image_names_no_folder_of_its_build(built: tuple[str, Path]) -> None:
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
def test_everything_that_runs_in_an_image_can_be_imported_there(built: tuple[str, Path]) -> None:
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
