"""The content of the images: by their recipe always, by the images themselves where buildah has built them."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import __version__
from serving.home.supervisor.children import ALLOCATOR
from tests.tidy.sources import ROOT, is_type_checking_block
from tests.tidy.test_sidecar import HEAVY

RECIPE = (ROOT / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUP: list[str] = PROJECT["dependency-groups"]["queue-proxy"]
QUEUE_PROXY_SIZE_MAX = 60_000_000
IMAGES = {"queue-proxy": f"localhost/serving-queue-proxy:{__version__}", "daemons": f"localhost/serving:{__version__}"}
BUILDAH = shutil.which("buildah")

# The modules that run in each image.
PROGRAMS = {
    "queue-proxy": ("serving.queueproxy.main",),
    "placement": ("serving.extender.main", "serving.metrics.otlp"),
    "daemons": (
        *(f"serving.{name}.main" for name in ("activator", "autoscaler", "controller", "dashboard", "nodegroup")),
        *("serving.controller.io.makekey", "serving.metrics.otlp"),
    ),
}


def stage(name: str) -> str:
    """The instructions of one stage, a line each."""
    joined = RECIPE.replace("\\\n", " ")
    found = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", joined, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def kept_packages(target: str = "queue-proxy") -> set[str]:
    """The packages of the project that an image keeps."""
    found = re.search(r"\$FINISH (.+)", stage(f"{target}-root"))
    assert found
    return set(found[1].split())


def distributions(requirements: list[str]) -> set[str]:
    """All installed packages for some requirements, by import name."""
    left, found = [re.split(r"[^A-Za-z0-9._-]", one)[0] for one in requirements], set[str]()
    while left:
        name = left.pop()
        if name.lower() in found:
            continue
        found.add(name.lower())
        needed = importlib.metadata.requires(name) or ()
        left += [re.split(r"[^A-Za-z0-9._-]", one)[0] for one in needed if "extra ==" not in one]
    return found


def imports_of(path: Path) -> Iterator[str]:
    """Modules that a file imports when it runs, inside functions too."""
    tree = ast.parse(path.read_text())
    typed = {node for block in ast.walk(tree) if is_type_checking_block(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in typed:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def reached_from(module: str) -> set[str]:
    """All modules that a module may import, directly or by others of the project."""
    left, found = [module], set[str]()
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        file = Path(ROOT, *name.split(".")).with_suffix(".py")
        if name.startswith("serving.") and file.exists():
            left += imports_of(file)
    return found


def test_the_queue_proxy_has_the_versions_of_the_daemons() -> None:
    assert set(GROUP) <= set(PROJECT["project"]["dependencies"])


def test_the_queue_proxy_imports_nothing_that_its_image_lacks() -> None:
    owners = importlib.metadata.packages_distributions()
    installed = distributions(GROUP)
    imported = reached_from("serving.queueproxy.main")
    assert {"serving.queueproxy.io.podrequests", "msgspec", "serving.proxy.http2.engine"} <= imported
    foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"serving"}
    assert {name for name in foreign if not {one.lower() for one in owners.get(name, ())} & installed} == set()
    own = {name.split(".")[1] for name in imported if name.startswith("serving.")}
    assert own - kept_packages() == set()


@pytest.mark.parametrize("target", PROGRAMS)
def test_an_image_keeps_the_packages_that_its_programs_import(target: str) -> None:
    imported = {name for program in PROGRAMS[target] for name in reached_from(program)}
    own = {name.split(".")[1] for name in imported if name.startswith("serving.")}
    assert own == kept_packages(target)
    assert own.isdisjoint({"home", "cli", "simulator"})


def test_the_queue_proxy_installs_nothing_heavy() -> None:
    assert distributions(GROUP).isdisjoint({*HEAVY, "prometheus-client", "opencensus", "google-api-core"})


def test_the_base_is_pinned_by_a_digest_that_an_argument_replaces() -> None:
    argument = re.search(r"^ARG PYTHON=(\S+)$", RECIPE, re.MULTILINE)
    assert argument
    assert re.search(r"@sha256:[0-9a-f]{64}$", argument[1])
    bases = re.findall(r"^FROM (\S+) AS (\S+)$", RECIPE, re.MULTILINE)
    stages = {name for _, name in bases}
    assert {base for base, _ in bases} - stages == {"${PYTHON}", "scratch"}


@pytest.mark.parametrize("target", ["queue-proxy", "placement", "daemons"])
def test_a_target_is_a_bare_root_without_rights(target: str) -> None:
    assert stage(target).splitlines()[0] == f"COPY --from={target}-root /rootfs /"
    assert f"FROM runtime AS {target}\n" in RECIPE
    assert "USER 65532:65532\n" in stage("runtime")


def test_all_images_keep_freed_memory_as_the_processes_of_one_machine_do() -> None:
    assert all(f"{name}={value}" in stage("runtime").split() for name, value in ALLOCATOR.items())


def test_the_default_target_is_that_of_the_daemons() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)$", RECIPE, re.MULTILINE)[-1] == "daemons"


def buildah(*arguments: str) -> str:
    assert BUILDAH
    return subprocess.run([BUILDAH, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def is_built(image: str) -> bool:
    if not BUILDAH or os.geteuid():
        return False
    return not subprocess.run(
        [BUILDAH, "inspect", "--type", "image", image], capture_output=True, check=False
    ).returncode


@pytest.fixture
def mounted(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A target, and the root of its image."""
    target: str = request.param
    if not is_built(IMAGES[target]):
        pytest.skip(f"buildah has no image {IMAGES[target]}")
    container = buildah("from", "--pull=never", IMAGES[target])
    try:
        yield target, Path(buildah("mount", container))
    finally:
        buildah("rm", container)


@pytest.mark.parametrize("mounted", IMAGES, indirect=True)
def test_an_image_holds_its_python_its_packages_and_nothing_to_log_in_with(mounted: tuple[str, Path]) -> None:
    target, root = mounted
    config = json.loads(buildah("inspect", "--type", "image", IMAGES[target]))["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    listed = json.loads((root / "usr/share/sbom/serving.cdx.json").read_text())["components"]
    names = {one["name"].lower() for one in listed}
    (packages,) = root.glob("opt/serving/lib/python*/site-packages")
    present = {path.name.partition("-")[0].replace("_", "-").lower() for path in packages.glob("*.dist-info")}
    assert present == {name.replace("_", "-") for name in names}
    assert not [name for name in ("bin/sh", "usr/bin/sh", "usr/bin/apt", "usr/bin/dpkg") if (root / name).exists()]
    assert list((root / "var/lib/dpkg/status.d").iterdir())
    assert [path for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000] == []


@pytest.mark.parametrize("mounted", ["queue-proxy"], indirect=True)
def test_the_image_of_the_queue_proxy_is_slim(mounted: tuple[str, Path]) -> None:
    _, root = mounted
    # A file of several names counts once.
    sizes = {
        path.stat().st_ino: path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    }
    assert sum(sizes.values()) <= QUEUE_PROXY_SIZE_MAX
    (packages,) = root.glob("opt/serving/lib/python*/site-packages")
    assert {path.name for path in packages.iterdir()}.isdisjoint(HEAVY)
    assert {path.name for path in (packages / "serving").iterdir() if path.is_dir()} - {
        "__pycache__"
    } == kept_packages()


def modules_of(target: str) -> list[str]:
    kubernetes = ["kubernetes.aio.client", "kubernetes.aio.config", "kubernetes.config"]
    return [*PROGRAMS[target], *(kubernetes if target == "daemons" else ())]


@pytest.mark.parametrize("mounted", IMAGES, indirect=True)
def test_everything_that_runs_in_an_image_can_be_imported_there(mounted: tuple[str, Path]) -> None:
    target, root = mounted
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
