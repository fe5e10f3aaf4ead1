"""The version of a build: the tag of its commit, or a development version before the next release.

``serving/__init__.py`` names the release that this tree is or becomes. A tag ``v0.2.0`` on the commit makes it that
release; without a tag the version is ``0.2.0.dev<commits>+g<commit>``. A tag that names another version is an error.
Outside of git the version is the one that the source distribution records.
"""

import os
import re
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


class WrongTag(ValueError):
    """A tag of the commit and the version in the source differ."""

    def __init__(self, tag: str, release: str) -> None:
        super().__init__(f"the commit has the tag {tag}, and serving/__init__.py says {release}; they must be equal")


def release() -> str:
    """The release that this tree is or becomes."""
    match = re.search(r'^__version__ = "([^"]+)"', (_ROOT / "serving/__init__.py").read_text(), re.MULTILINE)
    assert match
    return match[1]


def commit() -> str:
    """The full hash of the commit; empty outside of git."""
    return os.environ.get("SERVING_COMMIT") or _recorded("serving/_commit") or _git("rev-parse", "HEAD")


def version() -> str:
    """The version of this tree. Raises ``WrongTag``."""
    if version_override := os.environ.get("SERVING_VERSION"):
        return version_override
    if match := re.search(r"^Version: (.+)$", _recorded("PKG-INFO"), re.MULTILINE):
        return match[1]
    tags = [tag for tag in _git("tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    for tag in tags:
        if tag != f"v{release()}":
            raise WrongTag(tag, release())
    if tags or not _git("rev-parse", "HEAD"):
        return release()
    return f"{release()}.dev{_git('rev-list', '--count', 'HEAD')}+g{_git('rev-parse', '--short=8', 'HEAD')}"


def _recorded(name: str) -> str:
    path = _ROOT / name
    return path.read_text().strip() if path.exists() else ""


def _git(*arguments: str) -> str:
    """What git prints for this tree; empty where this is no repository of its own, or git is missing."""
    if not (_ROOT / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
