import sys
import venv
from pathlib import Path

import pytest

from serving.cli.services.asgiapp import asgi_command
from serving.model.errors import InvalidValue


def test_the_command_runs_the_app_by_an_interpreter_that_has_both_packages() -> None:
    assert asgi_command("app.main:make.app", None) == f"{sys.executable} -m serving.asgi app.main:make.app"


@pytest.mark.parametrize("app", ["app", "app.py", "a:b:c", "app:", "a b:c", "-m:a"])
def test_what_names_no_app_is_refused(app: str) -> None:
    with pytest.raises(InvalidValue, match="as in --asgi app:app"):
        asgi_command(app, None)


def test_an_environment_without_the_packages_says_what_is_missing_and_how_it_is_installed(tmp_path: Path) -> None:
    venv.create(tmp_path / "v", with_pip=False)
    with pytest.raises(
        InvalidValue, match=r"serving and uvicorn in the environment of .*/v/bin/python: .* pip install"
    ):
        asgi_command("app:app", tmp_path / "v")


def test_an_environment_without_a_python_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a Python that starts"):
        asgi_command("app:app", tmp_path)
