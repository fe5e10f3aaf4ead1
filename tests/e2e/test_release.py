"""A release: built twice, verified, corrupted and run.

Only the smallest image is built, because one program builds all images.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str, at: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The release of the last commit, from two clones in different folders."""
    results, source = [], ROOT
    for name in ("one", "somewhere/else"):
        clone = tmp_path_factory.mktemp("release") / name
        assert run("git", "clone", "--quiet", str(source), str(clone), at=ROOT).returncode == 0
        # The second clone is made from the first, so that both have the same commit.
        source = clone
        done = run(sys.executable, "-m", "release.build", str(clone / "dist"), "--image", "queue-proxy", at=clone)
        assert done.returncode == 0, done.stdout + done.stderr
        results.append(clone / "dist")
    return results[0], results[1]


def test_two_builds_of_a_commit_are_identical(twice: tuple[Path, Path]) -> None:
    first, other = ((folder / "SHA256SUMS").read_text() for folder in twice)
    assert first == other
    assert {line.rpartition(".")[2] for line in first.splitlines()} == {"whl", "gz", "tar", "json", "yaml"}


def test_release_verification_fails_after_a_changed_byte(twice: tuple[Path, Path], tmp_path: Path) -> None:
    spoiled = shutil.copytree(twice[0], tmp_path / "dist")
    assert run(sys.executable, "-m", "release.verify", str(spoiled), at=ROOT).returncode == 0
    archive = next(spoiled.glob("serving-queue-proxy-*.oci.tar"))
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    done = run(sys.executable, "-m", "release.verify", str(spoiled), at=ROOT)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{archive.name}: sha256 is ")


def test_image_archives_are_readable_by_skopeo(twice: tuple[Path, Path]) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    for archive in twice[0].glob("*.oci.tar"):
        done = run("skopeo", "inspect", f"oci-archive:{archive}", at=ROOT)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["Layers"]) == 3


def test_installed_wheel_reports_its_commit(twice: tuple[Path, Path], tmp_path: Path) -> None:
    wheel = next(twice[0].glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel)]
    assert subprocess.run(pip, check=False).returncode == 0
    program = "import sys; sys.path.insert(0, '.'); from serving.tools.cli.main import main; sys.argv[1:] = ['version', '--client', '-o', 'json']; main()"
    done = run(sys.executable, "-P", "-c", program, at=tmp_path)
    assert done.returncode == 0, done.stderr
    commit = run("git", "rev-parse", "HEAD", at=twice[0].parent).stdout.strip()
    assert json.loads(done.stdout)["commit"] == commit


def test_source_distribution_builds_the_same_wheel(twice: tuple[Path, Path], tmp_path: Path) -> None:
    (source,) = (path for path in twice[0].glob("serving-*.tar.gz") if "kustomize" not in path.name)
    shutil.unpack_archive(source, tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    epoch = run("git", "log", "-1", "--format=%ct", at=twice[0].parent).stdout.strip()
    done = run("env", f"SOURCE_DATE_EPOCH={epoch}", *build, at=tree)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.read_bytes() == next(twice[0].glob("*.whl")).read_bytes()


def test_uncommitted_changes_prevent_a_release(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    assert run("git", "clone", "--quiet", str(ROOT), str(clone), at=ROOT).returncode == 0
    (clone / "README.md").write_text("changed")
    done = run(sys.executable, "-m", "release.build", str(clone / "dist"), at=clone)
    assert done.returncode == 1
    assert done.stderr.startswith("release: commit or stash first")
    assert "README.md" in done.stderr
