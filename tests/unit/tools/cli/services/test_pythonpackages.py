from collections.abc import Mapping
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.tools.cli.services.pythonpackages import pip_arguments, project_scripts
from tests.unit.tools.cli.services.test_pythonapps import written

PROJECT = '[project]\ndependencies = ["flask>2", "x"]\n'
POETRY = '[tool.poetry.dependencies]\npython = "^3.11"\nflask = "^3.0"\nx = {version = "1.2", extras = ["a", "b"]}\n'
TEST_ONLY = 'y = {version = "1", optional = true}\n'


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({}, []),
        ({"requirements.txt": "flask", "pyproject.toml": PROJECT}, ["-r F/requirements.txt"]),
        ({"pyproject.toml": PROJECT}, ["'flask>2' x"]),
        ({"pyproject.toml": "[build-system]"}, ["-e F"]),
        ({"pyproject.toml": f"{PROJECT}[build-system]"}, ["-e F", "'flask>2' x"]),
        ({"pyproject.toml": "[tool.ruff]"}, []),
        ({"pyproject.toml": f"[build-system]\n{POETRY}"}, ["-e F", "'flask>=3.0,<4' 'x[a,b]==1.2'"]),
        ({"pyproject.toml": f"[build-system]\n[tool.poetry]\npackage-mode = false\n{POETRY}{TEST_ONLY}"}, ["'flask>=3.0,<4' 'x[a,b]==1.2'"]),
        ({"Pipfile": '[packages]\nflask = "*"\nx = ">=2"'}, ["flask 'x>=2'"]),
        ({"setup.py": ""}, ["-e F"]),
    ],
)  # fmt: skip
def test_pip_arguments_list_project_dependencies(
    tmp_path: Path, files: Mapping[str, str], arguments: list[str]
) -> None:
    assert pip_arguments(written(tmp_path, files)) == [words.replace("F", str(tmp_path)) for words in arguments]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("^1.2.3", ">=1.2.3,<2"), ("^0.2.3", ">=0.2.3,<0.3"), ("^0.0.3", ">=0.0.3,<0.0.4"), ("~1.2.3", "~=1.2.3"), ("~1.2", "==1.2.*"), ("==1.*", "==1.*")],
)  # fmt: skip
def test_poetry_version_becomes_a_pip_specifier(tmp_path: Path, version: str, expected: str) -> None:
    written(tmp_path, {"pyproject.toml": f'[tool.poetry.dependencies]\nx = "{version}"'})
    assert pip_arguments(tmp_path)[0].strip("'") == f"x{expected}"


def test_poetry_git_source_and_invalid_toml_are_rejected(tmp_path: Path) -> None:
    written(tmp_path, {"pyproject.toml": '[tool.poetry.dependencies]\nx = {git = "https://x"}'})
    with pytest.raises(InvalidValue, match=r"pyproject\.toml: x. is not a version"):
        pip_arguments(tmp_path)
    written(tmp_path, {"pyproject.toml": "["})
    with pytest.raises(InvalidValue, match="TOML"):
        pip_arguments(tmp_path)


def test_project_scripts_are_listed(tmp_path: Path) -> None:
    written(tmp_path, {"pyproject.toml": '[project.scripts]\na = "x:y"\n[tool.poetry.scripts]\nb = "x:y"'})
    assert project_scripts(tmp_path) == ["a", "b"]
