"""Chooses the command for ``serving deploy`` with the user, and installs packages.

What ``detect`` finds is printed. On a terminal the user chooses between several, and agrees to an installation; elsewhere both are
errors that name the options.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import FOLDER_ANNOTATION
from serving.core.model.objects import annotations_of, nested
from serving.home.images.store import ImageUnavailable, containerfile_in, find_builder, find_packer
from serving.home.pods.podplan import DEFAULT_PATH
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient, fail, fail_usage
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.services.deployment import command_of, find_virtualenv
from serving.tools.cli.services.detect import build_commands, choices, name_of_folder
from serving.tools.cli.services.pythonapps import Choice


def placed(name: str | None, folder: Path | None, *, is_image: bool) -> tuple[str, Path]:
    """The name and the folder of the arguments, of which each may be left out. Exits if they are wrong."""
    is_path = name is not None and ("/" in name or name in {".", ".."})
    if folder is not None and is_path:
        fail_usage(f"{name} is no name: the name comes before the folder, as in `serving deploy shop {name}`")
    if name is not None and not is_path:
        return name, _checked(folder or Path())
    if is_image:
        fail_usage("--image needs a name, as in `serving deploy shop --image IMAGE`")
    path = _checked(Path(name or "."))
    try:
        return name_of_folder(path), path
    except InvalidValue as error:
        fail_usage(str(error))


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        what = "a file" if folder.exists() else "missing"
        fail_usage(f"{folder} is {what}: expected a folder, as in `serving deploy shop .`")
    return folder


def command_for(api: ApiClient, name: str, folder: Path, *, build: bool, again: bool) -> str:
    """The command for a folder, or "" to build its image. ``again`` ignores the command of the existing service.

    Raises ``InvalidValue`` for a file of the folder that cannot be read. Exits if there is nothing to run.
    """
    if api.state_path is None:
        fail_usage("Kubernetes runs images: push one to a registry and name it by --image")
    has_file = containerfile_in(folder) is not None
    why_unbuilt = _why_unbuilt(name) if has_file else ""
    if has_file and not why_unbuilt:
        return ""
    before = "" if again else _command_before(api, name, folder)
    if build or not before:
        _install(folder, build_commands(folder, find_virtualenv(folder, os.environ), again=build), build=build)
    if before:
        return before
    choice = _chosen(folder, _choices(folder))
    if choice is None:
        if has_file or find_packer():
            return ""
        fail_usage(
            f"{folder.absolute()} has nothing to run: expected a Containerfile, a Procfile, a Python or Node app or an index.html "
            "in it, a command after --command, as 'python app.py', or an --image"
        )
    if choice.missing:
        _install(
            folder, build_commands(folder, find_virtualenv(folder, os.environ), missing=choice.missing), build=build
        )
        choice = next(other for other in _choices(folder) if other.source == choice.source)
    print_aside(f"{choice.source}: running `{choice.command}`; --command runs another")
    if why_unbuilt:
        print_aside(f"the Containerfile is not built: {why_unbuilt}")
    return choice.command


def install_packages(folder: Path) -> None:
    """Install what a folder lists, as --build does."""
    _install(folder, build_commands(folder, find_virtualenv(folder, os.environ), again=True), build=True)


def _why_unbuilt(name: str) -> str:
    try:
        find_builder(name)
    except ImageUnavailable as error:
        return error.why
    return ""


def _command_before(api: ApiClient, name: str, folder: Path) -> str:
    """The command that a service runs in this folder; "" for none."""
    status, before = api.call("GET", path_of(SERVING_SERVICE, api.namespace, name))
    template = (nested(before, "spec", "template") or {}) if status < 400 else {}
    is_same = annotations_of(template).get(FOLDER_ANNOTATION) == str(folder.absolute())
    return command_of(template) if is_same else ""


def _choices(folder: Path) -> list[Choice]:
    virtualenv = find_virtualenv(folder, os.environ)

    def has(program: str) -> bool:
        if virtualenv is not None:
            return (virtualenv / "bin" / program).exists()
        return shutil.which(program, path=DEFAULT_PATH) is not None

    return choices(folder, has=has, python="python" if virtualenv else "python3")


def _chosen(folder: Path, several: Sequence[Choice]) -> Choice | None:
    """The only choice, or that of the user on a terminal; None without one."""
    if len(several) < 2:
        return several[0] if several else None
    lines = [f"{choice.source}: {choice.command or f'needs {choice.missing}'}" for choice in several]
    if not _is_terminal():
        listed = "".join(f"\n  {line}" for line in lines)
        fail_usage(f"{folder.absolute()} has several things to run: choose one by --command '...'{listed}")
    for number, line in enumerate(lines, 1):
        print_aside(f"{number}  {line}")
    return several[click.prompt("Which is to run", type=click.IntRange(1, len(lines)), err=True) - 1]


def _install(folder: Path, commands: Sequence[str], *, build: bool) -> None:
    """Run the commands with --build, or if the user agrees on a terminal. Exits if they fail or may not run."""
    if not commands:
        return
    text = " && ".join(commands)
    if not build:
        print_aside(f"{folder.absolute()} lists packages that are not installed; to install them: {text}")
        if not (_is_terminal() and click.confirm("Run it now?", err=True)):
            fail_usage("--build runs it before the deploy")
    print_aside(f"running {text}")
    # Standard output is for results.
    if subprocess.run(["/bin/sh", "-c", text], stdout=2, check=False).returncode:  # noqa: S603 - printed before
        fail(f"{folder.absolute()}: the packages cannot be installed; the lines above say why")


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
