from pathlib import Path

from serving.cli.services.virtualenv import environment_of, find_virtualenv


def made(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "pyvenv.cfg").touch()
    return path


def test_the_folders_own_goes_before_the_active_one(tmp_path: Path) -> None:
    active = made(tmp_path / "active")
    environment = {"VIRTUAL_ENV": str(active)}
    assert find_virtualenv(tmp_path / "app", environment) == active
    own = made(tmp_path / "app" / ".venv")
    assert find_virtualenv(tmp_path / "app", environment) == own


def test_a_folder_of_that_name_alone_is_none(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    assert find_virtualenv(tmp_path, {"VIRTUAL_ENV": str(tmp_path / "gone")}) is None


def test_its_programs_are_found_first() -> None:
    found = environment_of(Path("/v"))
    assert found["VIRTUAL_ENV"] == "/v"
    assert found["PATH"].startswith("/v/bin:/usr/local/sbin:")
