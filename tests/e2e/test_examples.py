"""Run the commands of each example's README against one running system."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from serving.home.processes.mounts import can_mount
from tests.e2e.cli_stage import ROOT, Stage, staged

pytestmark = pytest.mark.timeout(390)

EXAMPLES = ROOT / "examples"
_BLOCK = "```"
_PROMPT = "$ "
_STEP_S = 300.0
# Examples that install packages, and required programs with their Debian packages.
_SLOW = {"fastapi", "flask", "django", "grpc", "websocket", "express", "go"}
_NEEDS = {"express": ("npm", "npm"), "go": ("go", "golang-go")}

# Commands that are not run: the system already runs, and serving is installed.
_NOT_TYPED = ("pipx ", "serving up", "serving down")


class Step(msgspec.Struct, frozen=True):
    """A command, and lines that its output must contain."""

    command: str
    lines: tuple[str, ...]


def steps_of(page: str) -> list[Step]:
    """The commands of all console blocks of a page."""
    results: list[tuple[str, list[str]]] = []
    is_console = False
    for line in page.splitlines():
        if line.startswith(_BLOCK):
            is_console = line == f"{_BLOCK}console"
        elif is_console and line.startswith(_PROMPT):
            results.append((line.removeprefix(_PROMPT), []))
        elif is_console:
            results[-1][1].append(line)
    return [Step(command, tuple(lines)) for command, lines in results]


@pytest.fixture(scope="module")
def environment(serving: Stage) -> dict[str, str]:
    """The environment of the commands, in which this system is the user's default."""
    return environment_of(serving.state.parent)


def environment_of(base: Path) -> dict[str, str]:
    """An environment in which commands find the system below a folder."""
    folder = str(Path(sys.executable).parent)
    values = {**os.environ, "XDG_STATE_HOME": str(base), "PATH": f"{folder}:{os.environ['PATH']}"}
    # Without the virtual environment of this test.
    return {name: value for name, value in values.items() if name not in {"KUBECONFIG", "VIRTUAL_ENV"}}


def type_in(steps: list[Step], folder: Path, environment: dict[str, str], within: Sequence[str] = ()) -> None:
    """Run the steps in order, each in a shell; ``within`` is a prefix of each shell's command."""
    assert steps
    for step in steps:
        done = subprocess.run(
            [*within, "/bin/sh", "-c", step.command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_STEP_S,
            check=False,
        )
        assert done.returncode == 0, (step.command, done.stdout, done.stderr)
        missing = [line for line in step.lines if line not in done.stdout]
        assert not missing, (step.command, missing, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=[pytest.mark.slow] if path.name in _SLOW else [])
        for path in sorted(EXAMPLES.iterdir())
        if (path / "README.md").exists()
    ],
)
def test_commands_of_an_examples_readme_succeed(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    program, package = _NEEDS.get(name, ("sh", "dash"))
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt-get install {package}")
    if name == "two-services" and not can_mount():
        pytest.skip("mount namespaces are not allowed here: sysctl user.max_user_namespaces, or run as root")
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns(".venv", "node_modules"))
    type_in(steps_of((folder / "README.md").read_text()), folder, environment)


@pytest.mark.slow
def test_tutorial_commands_succeed(tmp_path: Path) -> None:
    steps = [
        step
        for step in steps_of((ROOT / "docs" / "tutorial.md").read_text())
        if not step.command.startswith(_NOT_TYPED)
    ]
    place = next(step for step in steps if step.command.startswith("cd "))
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / place.command.removeprefix("cd "), folder)
    seconds = {"STABLE_WINDOW_S": "6", "SCALE_TO_ZERO_GRACE_PERIOD_S": "6"}
    with staged(tmp_path / "serving", **{f"SERVING_AUTOSCALER_{name}": text for name, text in seconds.items()}):
        type_in([step for step in steps if step is not place], folder, environment_of(tmp_path))


def test_examples_readme_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.iterdir() if path.is_dir() and f"({path.name}/" not in page] == []
