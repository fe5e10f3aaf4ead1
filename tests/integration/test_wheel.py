"""The wheel works outside the checkout and contains all shipped files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The fixture builds a wheel, as `make release` does.
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def serving(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "serving", *arguments]
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)


def test_wheel_contains_valid_config_maps(installed: Path) -> None:
    shipped = sorted((installed / "serving" / "_config").glob("config-*.yaml"))
    assert [path.name for path in shipped] == sorted(path.name for path in (ROOT / "config").glob("config-*.yaml"))
    done = serving(installed, "config", "check", *map(str, shipped))
    assert (done.returncode, done.stdout) == (0, f"{len(shipped)} ConfigMaps fine\n")


def test_settings_page_is_printed_without_the_checkout(installed: Path) -> None:
    assert serving(installed, "config", "defaults", "--page").stdout == (ROOT / "docs" / "settings.md").read_text()


def test_wheel_contains_py_typed(installed: Path) -> None:
    assert (installed / "serving" / "py.typed").exists()
