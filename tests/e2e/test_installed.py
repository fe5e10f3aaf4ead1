"""The tutorial with only the wheel in an empty virtual environment, and an empty home folder."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_stage import ROOT
from tests.e2e.test_examples import steps_of, type_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TUTORIAL = steps_of((ROOT / "docs" / "tutorial.md").read_text())
# The fixture installs with pip instead of `pipx install .`.
_INSTALL = "pipx "
_WITHIN_S = 300.0
# The PATH of a new Debian account, without the developer's programs.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Imports every module, and prints what is missing.
_IMPORTING = """
import importlib, pkgutil, serving
print(serving.__file__)
for module in pkgutil.walk_packages(serving.__path__, "serving."):
    try:
        module.name.endswith("__main__") or importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(error.name.partition(".")[0])
"""
# Packages of extras: cluster, placement, grpc, asgi, otel.
_EXTRAS = {"kubernetes", "scipy", "grpc", "google", "uvicorn", "opentelemetry"}
_PIP = ["python", "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = shutil.which(command[0], path=environment["PATH"])
    assert program is not None
    # Not in the folder of the tests, which has another `serving`.
    return subprocess.run(
        [program, *command[1:]],
        cwd=environment["HOME"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who has installed the wheel."""
    base = tmp_path_factory.mktemp("user")
    wheels = [sys.executable, *_PIP[1:], "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(base)]
    subprocess.run([*wheels, str(ROOT)], check=True, timeout=_WITHIN_S)
    (wheel,) = base.glob("*.whl")
    venv.create(base / "venv", with_pip=True)
    (base / "home").mkdir()
    environment = {"PATH": f"{base / 'venv' / 'bin'}:{_PATH}", "HOME": str(base / "home")}
    # The environment may configure a mirror of the index.
    pip = {**environment, **{name: text for name, text in os.environ.items() if name.startswith("PIP_")}}
    probe = run([*_PIP, "install", "--dry-run", "--no-deps", "click"], pip)
    if probe.returncode:
        pytest.skip(f"pip finds no index of packages: {probe.stderr.strip().splitlines()[-1]}")
    done = run([*_PIP, "install", str(wheel)], pip)
    assert done.returncode == 0, done.stderr
    return environment


@pytest.fixture
def network() -> Iterator[list[str]]:
    """A command prefix that runs a command in a new network namespace, where all ports are free."""
    with subprocess.Popen(
        ["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "up\n":
            pytest.skip("network namespaces are not allowed here: run as root, with iproute2")
        yield ["nsenter", "-t", str(process.pid), "-n"]
        process.stdin.close()


def test_wheel_requires_every_imported_package(user: dict[str, str]) -> None:
    done = run(["python", "-c", _IMPORTING], user)
    file, *missing = done.stdout.splitlines()
    assert file.startswith(user["PATH"].partition("/bin:")[0]), done
    assert (done.returncode, set(missing) <= _EXTRAS) == (0, True), done


def test_tutorial_runs_from_the_installed_wheel(user: dict[str, str], network: list[str], tmp_path: Path) -> None:
    """Takes a minute with the installation."""
    steps = [step for step in TUTORIAL if not step.command.startswith(_INSTALL)]
    place = next(step for step in steps if step.command.startswith("cd "))
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / place.command.removeprefix("cd "), folder)
    seconds = {"STABLE_WINDOW_S": "6", "SCALE_TO_ZERO_GRACE_PERIOD_S": "6"}
    environment = {**user, **{f"SERVING_AUTOSCALER_{name}": text for name, text in seconds.items()}}
    home = Path(user["HOME"])
    # pip may have a cache there.
    before = set(home.iterdir())
    try:
        type_in([step for step in steps if step is not place], folder, environment, within=network)
    finally:
        run([*network, "serving", "down"], environment)
    assert set(home.iterdir()) - before == {home / ".local"}
    logs = list((home / ".local" / "state" / "serving" / "logs").glob("*.log"))
    assert "control.log" in {path.name for path in logs}
    assert not [path for path in logs if "Traceback" in path.read_text()]
