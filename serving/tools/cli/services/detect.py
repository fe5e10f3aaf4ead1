"""Finds the command for a folder, and the packages to install first.

Input: a folder and the programs of its environment. Output: choices, each with the command and its source file. A
Procfile has precedence; then come Python, Node and a folder of pages. Nothing of the folder is executed.
"""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from serving.core.model.errors import InvalidValue
from serving.tools.cli.services.pythonapps import (
    Choice,
    PythonApp,
    command_of_app,
    django_command,
    lone_programs,
    python_apps,
)
from serving.tools.cli.services.pythonpackages import pip_arguments, project_scripts

_WEB = re.compile(r"web\s*:\s*(\S.*)")
_URL = re.compile(r"\S+://\S+")
_PORT_OPTION = re.compile(
    r"(?:--?(?:server[.-])?(?:port|bind|listen|address|[pb])[= ]|:)(?:[\w.\[\]*-]*:)?(\d{2,5})(?![\w.])"
)
# Build output comes before the source.
_PAGES = ("dist", "build", "out", "", "public", "_site", "site")
_NODE_SERVERS = tuple(
    f"{below}{name}"
    for below in ("", "src/", "dist/", "build/", ".output/server/")
    for name in ("server.js", "index.js", "app.js", "main.js", "server.mjs", "index.mjs")
)
# Files that no page loads, also without a package.json.
_LONE_SERVERS = ("server.js", "server.mjs")
_COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_SCRIPT = re.compile(r"<script\b[^>]*\bsrc\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE)
_VIRTUALENV = ".venv"
_NAME_MAX = 63


def choices(folder: Path, *, has: Callable[[str], bool], python: str) -> list[Choice]:
    """All ways to run a folder. There are several if its files are ambiguous."""
    web = _procfile(folder)
    if web:
        return [web]

    def of_apps(apps: list[PythonApp]) -> list[Choice]:
        return [command_of_app(folder, app, has=has, python=python) for app in apps]

    if (folder / "manage.py").is_file():
        of_python = [django_command(folder, has=has, python=python)]
    else:
        of_python = of_apps(python_apps(folder)) or [*_project_scripts(folder, has)]
    of_node = [] if of_python and not (folder / "package.json").is_file() else [*_node(folder)]
    return [*of_python, *of_node] or [*_pages(folder)][:1] or of_apps(lone_programs(folder))


def _procfile(folder: Path) -> Choice | None:
    path = folder / "Procfile"
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    command = next((match[1] for line in lines if (match := _WEB.match(line))), None)
    if command is None:
        raise InvalidValue(text=str(path), expected="a Procfile with a line `web: COMMAND`; --command replaces it")
    return Choice(source="web: of the Procfile", command=command.strip())


def _project_scripts(folder: Path, has: Callable[[str], bool]) -> Iterator[Choice]:
    for name in project_scripts(folder):
        if has(name):
            yield Choice(source=f"scripts of pyproject.toml: {name}", command=shlex.quote(name))


def _node(folder: Path) -> Iterator[Choice]:
    package = node_package(folder)
    scripts = package.get("scripts", {})
    start = str(scripts.get("start") or "")
    if start.startswith("next start") and (folder / "out" / "index.html").is_file():
        # `output: "export"` of Next.js, with which `next start` ends.
        return
    is_grpc = "@grpc/grpc-js" in (package.get("dependencies") or {})
    if start:
        # npm stays in memory beside the app; a plain command saves this memory.
        is_plain = start.startswith("node ") and "prestart" not in scripts
        yield Choice(
            source="scripts.start of package.json", command=start if is_plain else "npm start", is_grpc=is_grpc
        )
    else:
        names = [str(package.get("main") or ""), *_NODE_SERVERS] if package else _LONE_SERVERS
        of_pages = {*_page_scripts(folder)}
        main = next((name for name in names if (folder / name).is_file() and folder / name not in of_pages), None)
        if main:
            yield Choice(
                source=f"{main} of package.json" if package else main,
                command=f"node {shlex.quote(main)}",
                is_grpc=is_grpc,
            )


def _page_scripts(folder: Path) -> Iterator[Path]:
    """The scripts that pages load. Browsers run them, not Node."""
    for name in _PAGES:
        page = folder / name / "index.html"
        if page.is_file():
            for source in _SCRIPT.findall(page.read_text(encoding="utf-8", errors="replace")):
                yield page.parent / source.lstrip("./")


def node_package(folder: Path) -> dict[str, Any]:
    """The content of a folder's package.json; empty if it does not exist. Raises ``InvalidValue`` if unreadable."""
    path = folder / "package.json"
    if not path.is_file():
        return {}
    try:
        package = json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidValue(text=str(path), expected=f"JSON ({error})") from None
    if not isinstance(package, dict) or not isinstance(package.get("scripts") or {}, dict):
        raise InvalidValue(text=str(path), expected="an object, with an object of scripts")
    return {**package, "scripts": package.get("scripts") or {}}


def _pages(folder: Path) -> Iterator[Choice]:
    for name in _PAGES:
        if (folder / name / "index.html").is_file():
            secrets = [path.name for path in (folder / name).glob(".env*")]
            if secrets:
                expected = f"a folder of pages without {secrets[0]}, which would be public: move the pages to {folder / 'public'}"
                raise InvalidValue(text=str(folder / name), expected=expected)
            server = f"{shlex.quote(sys.executable)} -m http.server $PORT --bind 127.0.0.1 --protocol HTTP/1.1"
            directory = f" --directory {name}" if name else ""
            yield Choice(source=f"pages ({name}{'/' * bool(name)}index.html)", command=server + directory)


def other_command(folder: Path) -> str:
    """The command for a folder of manifests, or with a compose file; "" for other folders."""
    compose = next((folder / name for name in _COMPOSE_FILES if (folder / name).is_file()), None)
    if compose:
        return f"serving convert {shlex.quote(str(compose))}"
    return f"serving apply -f {shlex.quote(str(folder))}" if any(folder.glob("*.y*ml")) else ""


def build_commands(folder: Path, virtualenv: Path | None, *, missing: str = "", again: bool = False) -> list[str]:
    """The commands that install a folder's packages and the package ``missing``; ``again``: also if they are installed."""
    commands = []
    listed = pip_arguments(folder) if virtualenv is None or again else []
    if missing or listed:
        place = virtualenv or folder / _VIRTUALENV
        if virtualenv is None:
            commands.append(f"python3 -m venv {shlex.quote(str(place))}")
        pip = f"{shlex.quote(str(place / 'bin' / 'python'))} -m pip install"
        ways = [f"{pip} {words} {missing}".rstrip() for words in listed] or [f"{pip} {missing}"]
        commands.append(ways[0] if len(ways) == 1 else f"({' || '.join(ways)})")
    package = node_package(folder)
    depends = package.get("dependencies") or (
        package.get("devDependencies") if "build" in package.get("scripts", {}) else None
    )
    if depends and (again or not (folder / "node_modules").is_dir()):
        commands.append(f"npm --prefix {shlex.quote(str(folder))} install")
        if "build" in package.get("scripts", {}):
            commands.append(f"npm --prefix {shlex.quote(str(folder))} run build")
    return commands


def named_port(command: str) -> int | None:
    """The port that a command uses instead of $PORT, such as 8080 in ``--bind :8080``; None if there is none."""
    if "PORT" in command:
        return None
    match = _PORT_OPTION.search(_URL.sub("", command))
    return int(match[1]) if match else None


def name_of_folder(folder: Path) -> str:
    """The service name derived from a folder's name: "My_Shop" becomes "my-shop".

    Raises ``InvalidValue`` if no part of the name is valid.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).lstrip("-0123456789")[:_NAME_MAX].rstrip("-")
    if not name:
        raise InvalidValue(
            text=str(folder), expected="a service's name before the folder, as in `serving deploy shop .`"
        )
    return name
