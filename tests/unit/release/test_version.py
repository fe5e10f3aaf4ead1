import re
import shutil
import subprocess
from pathlib import Path

import pytest

import release.version
from release.version import WrongTag, commit, version
from serving import __version__


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, and the version of this tree."""
    (tmp_path / "serving").mkdir()
    source = Path(release.version.__file__).parent.parent / "serving/__init__.py"
    shutil.copy(source, tmp_path / "serving/__init__.py")
    monkeypatch.setattr("release.version._ROOT", tmp_path)
    monkeypatch.delenv("SERVING_VERSION", raising=False)
    monkeypatch.delenv("SERVING_COMMIT", raising=False)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", "One")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_untagged_commit_has_development_version(repository: Path) -> None:
    assert version() == f"{__version__}.dev1+g{git(repository, 'rev-parse', '--short=8', 'HEAD')}"
    assert commit() == git(repository, "rev-parse", "HEAD")


def test_tag_of_version_yields_release_version(repository: Path) -> None:
    git(repository, "tag", f"v{__version__}")
    git(repository, "tag", "nightly")
    assert version() == __version__


def test_tag_of_other_version_is_rejected(repository: Path) -> None:
    git(repository, "tag", "v99.0.0")
    with pytest.raises(WrongTag, match=rf"v99\.0\.0, and serving/__init__\.py says {re.escape(__version__)}"):
        version()


def test_source_distribution_has_version_of_pkg_info_and_its_commit(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    (repository / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: serving\nVersion: 0.9.1\n")
    (repository / "serving/_commit").write_text("abc\n")
    assert (version(), commit()) == ("0.9.1", "abc")


def test_tree_without_git_has_version_of_source(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    assert (version(), commit()) == (__version__, "")
