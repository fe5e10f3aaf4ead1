"""Finds the Python packages that a folder lists, and the pip arguments for installing them.

Input: requirements.txt, pyproject.toml (PEP 621, or Poetry's own table), a Pipfile or setup.py. Versions of Poetry
(``^1.2``, ``~1.2``) become those of pip.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import object_at

_OPERATORS = re.compile(r"[<>=!~]")
_VERSION = re.compile(r"([\^~]?)(\d+(?:\.\d+)*)")


def pip_arguments(folder: Path) -> list[str]:
    """The arguments for ``pip install``, as shell words, in several alternatives; empty if no file lists packages.

    The first alternative installs the project itself if it is a package. The last one installs only its dependencies,
    in case the first one fails.
    """
    requirements = folder / "requirements.txt"
    if requirements.is_file():
        return [f"-r {shlex.quote(str(requirements))}"]
    project, pipfile = _toml(folder / "pyproject.toml"), _toml(folder / "Pipfile")
    poetry = object_at(object_at(project, "tool"), "poetry")
    dependencies = [str(text) for text in object_at(project, "project").get("dependencies") or ()]
    if not dependencies:
        path, packages = folder / "pyproject.toml", object_at(poetry, "dependencies")
        if not packages:
            path, packages = folder / "Pipfile", object_at(pipfile, "packages")
        dependencies = [*_requirements(path, packages)]
    is_package = "build-system" in project and poetry.get("package-mode", True)
    is_package = is_package or (not project and (folder / "setup.py").is_file())
    ways = [f"-e {shlex.quote(str(folder))}"] if is_package else []
    return [*ways, *([shlex.join(dependencies)] if dependencies else [])]


def project_scripts(folder: Path) -> list[str]:
    """The programs that an installed project adds (``project.scripts``, ``tool.poetry.scripts``)."""
    project = _toml(folder / "pyproject.toml")
    poetry = object_at(object_at(project, "tool"), "poetry")
    return [*object_at(object_at(project, "project"), "scripts"), *object_at(poetry, "scripts")]


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidValue(text=str(path), expected=f"TOML ({error})") from None


def _requirements(path: Path, packages: Mapping[str, Any]) -> Iterator[str]:
    """The packages of Poetry or of a Pipfile as requirements. Raises ``InvalidValue`` for one without a version."""
    for name, value in packages.items():
        version = value.get("version") if isinstance(value, dict) else value
        if name == "python" or (isinstance(value, dict) and value.get("optional")):
            continue
        if not isinstance(version, str):
            raise InvalidValue(text=f"{path}: {name}", expected="a version; install other sources in .venv yourself")
        extras = ",".join(value.get("extras") or ()) if isinstance(value, dict) else ""
        yield f"{name}[{extras}]{_specifier(version)}" if extras else f"{name}{_specifier(version)}"


def _specifier(version: str) -> str:
    """Convert a version of Poetry or a Pipfile to pip's format: "^1.2" becomes ">=1.2,<2"."""
    match = _VERSION.fullmatch(version.strip())
    if version.strip() == "*":
        return ""
    if match is None or not match[1]:
        return version if match is None and _OPERATORS.match(version.strip()) else f"=={version.strip()}"
    parts = match[2].split(".")
    if match[1] == "~":
        return f"=={'.'.join(parts[:2])}.*" if len(parts) < 3 else f"~={match[2]}"
    # The first part that is not 0 stays.
    index = next((index for index, part in enumerate(parts) if part != "0"), len(parts) - 1)
    return f">={match[2]},<{'.'.join([*parts[:index], str(int(parts[index]) + 1)])}"
