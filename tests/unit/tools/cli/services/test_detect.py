import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.tools.cli.services.detect import build_commands, choices, name_of_folder, named_port, other_command
from tests.unit.tools.cli.services.test_pythonapps import FASTAPI, FLASK, written

PAGES = f"{sys.executable} -m http.server $PORT --bind 127.0.0.1 --protocol HTTP/1.1"
START = json.dumps({"scripts": {"start": "node server.js"}})


def commands_of(folder: Path) -> list[str]:
    new_choices = choices(folder, has={"uvicorn", "gunicorn"}.__contains__, python="python")
    return [choice.command for choice in new_choices]


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"Procfile": "worker: x\nweb: gunicorn a:b\n", "main.py": FASTAPI}, "gunicorn a:b"),
        ({"manage.py": "", "app.py": FLASK}, "python manage.py runserver --noreload 127.0.0.1:$PORT"),
        ({"package.json": START}, "node server.js"),
        ({"package.json": '{"scripts": {"start": "next start"}}'}, "npm start"),
        ({"package.json": '{"scripts": {"start": "next start"}}', "out/index.html": ""}, f"{PAGES} --directory out"),
        ({"package.json": '{"scripts": {"start": "node a", "prestart": "b"}}'}, "npm start"),
        ({"package.json": '{"main": "lib.js"}', "lib.js": "", "index.js": ""}, "node lib.js"),
        ({"package.json": "{}", ".output/server/index.mjs": ""}, "node .output/server/index.mjs"),
        ({"pyproject.toml": '[project.scripts]\ngunicorn = "a:b"\nother = "a:c"', "job.py": "print(1)"}, "gunicorn"),
        ({"package.json": "{}", "dist/index.html": "", "build.py": "print(1)"}, f"{PAGES} --directory dist"),
        (
            {
                "package.json": "{}",
                "index.html": "<script type=module src=/src/main.js>",
                "src/main.js": "",
                "dist/index.html": "",
            },
            f"{PAGES} --directory dist",
        ),
        (
            {"package.json": "{}", "dist/index.html": '<SCRIPT async src="./main.js">', "dist/main.js": ""},
            f"{PAGES} --directory dist",
        ),
        ({"package.json": "{}", "public/index.html": '<script src="/index.js">', "index.js": ""}, "node index.js"),
        ({"index.html": ""}, PAGES),
        ({"server.js": "", "index.html": ""}, "node server.js"),
        ({"server.js": "", "index.html": "<script src=server.js>"}, PAGES),
        ({"server.js": "", "main.py": FASTAPI}, "uvicorn main:app --port $PORT"),
        ({"hello.py": FLASK}, "gunicorn hello:app --bind 127.0.0.1:$PORT --threads 8"),
        ({"Procfile": "\ufeffweb: node a.js\r\n"}, "node a.js"),
        ({"job.py": "print(1)", "setup.py": "print(1)"}, "python job.py"),
    ],
)
def test_start_command_is_detected_from_project_files(tmp_path: Path, files: Mapping[str, str], command: str) -> None:
    assert commands_of(written(tmp_path, files)) == [command]


@pytest.mark.parametrize(
    ("name", "command"),
    [("docker-compose.yml", "serving convert "), ("service.yaml", "serving apply -f "), ("README.md", "")],
)
def test_compose_or_manifest_folder_suggests_convert_or_apply(tmp_path: Path, name: str, command: str) -> None:
    assert other_command(written(tmp_path, {name: ""})).startswith(command)
    assert bool(other_command(tmp_path)) is bool(command)


@pytest.mark.parametrize(
    ("files", "is_grpc"),
    [
        ({"server.py": "import grpc\ngrpc.server(None).start()\n"}, True),
        ({"server.py": "import http.server\nhttp.server.test()\n"}, False),
        ({"package.json": '{"main": "a.js", "dependencies": {"@grpc/grpc-js": "1"}}', "a.js": ""}, True),
        ({"package.json": START}, False),
    ],
)
def test_grpc_server_is_detected_by_its_package(tmp_path: Path, files: Mapping[str, str], *, is_grpc: bool) -> None:
    (choice,) = choices(written(tmp_path, files), has={"x"}.__contains__, python="python")
    assert choice.is_grpc is is_grpc


def test_python_and_node_apps_are_two_choices(tmp_path: Path) -> None:
    assert len(commands_of(written(tmp_path, {"main.py": FASTAPI, "package.json": START}))) == 2
    assert commands_of(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"Procfile": "worker: x"}, "a line `web: COMMAND`"),
        ({"package.json": "{"}, "JSON"),
        ({"package.json": "[]"}, "an object"),
        ({"package.json": '{"scripts": 1}'}, "an object of scripts"),
        ({"index.html": "", ".env": "KEY=1"}, "would be public"),
    ],
)
def test_unusable_project_file_is_reported(tmp_path: Path, files: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        commands_of(written(tmp_path, files))


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        ({}, []),
        ({"requirements.txt": "flask"}, ["python3 -m venv F/.venv", "F/.venv/bin/python -m pip install -r F/requirements.txt"]),
        ({"package.json": START}, []),
        ({"package.json": '{"dependencies": {"express": "4"}}'}, ["npm --prefix F install"]),
        ({"package.json": '{"devDependencies": {"vite": "4"}, "scripts": {"build": "vite build"}}'}, ["npm --prefix F install", "npm --prefix F run build"]),
        ({"package.json": '{"dependencies": {"express": "4"}}', "node_modules/x": ""}, []),
    ],
)  # fmt: skip
def test_build_commands_install_listed_dependencies(
    tmp_path: Path, files: Mapping[str, str], commands: list[str]
) -> None:
    written(tmp_path, files)
    assert build_commands(tmp_path, None) == [command.replace("F", str(tmp_path)) for command in commands]


def test_build_commands_install_only_missing_packages_in_a_virtualenv(tmp_path: Path) -> None:
    written(tmp_path, {"requirements.txt": "flask"})
    pip = f"{tmp_path}/.venv/bin/python -m pip install"
    assert build_commands(tmp_path, tmp_path / ".venv") == []
    assert build_commands(tmp_path, tmp_path / ".venv", missing="gunicorn") == [f"{pip} gunicorn"]
    assert build_commands(tmp_path, tmp_path / ".venv", again=True) == [f"{pip} -r {tmp_path}/requirements.txt"]
    written(tmp_path, {"requirements.txt": ""}).joinpath("requirements.txt").unlink()
    written(tmp_path, {"pyproject.toml": "["})
    with pytest.raises(InvalidValue, match="TOML"):
        build_commands(tmp_path, None)


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("gunicorn --bind :8080 app:app", 8080),
        ("gunicorn -b 0.0.0.0:8000 app:app", 8000),
        ("uvicorn main:app --port=8001", 8001),
        ("node server.js -p 3000", 3000),
        ("streamlit run a.py --server.port 8501", 8501),
        ("python manage.py runserver 0.0.0.0:8000", 8000),
        ("uvicorn main:app --port $PORT", None),
        ("uvicorn main:app --port ${PORT:-8080}", None),
        ("python app.py --database postgres://db:5432/shop", None),
        ("gunicorn --threads 8 app:app", None),
    ],
)
def test_port_is_detected_in_a_command(command: str, port: int | None) -> None:
    assert named_port(command) == port


@pytest.mark.parametrize(("name", "expected"), [("My_Shop", "my-shop"), ("2nd shop!", "nd-shop"), ("a" * 70, "a" * 63)])
def test_service_name_is_derived_from_the_folder(name: str, expected: str) -> None:
    assert name_of_folder(Path("/apps") / name) == expected


def test_folder_name_without_a_letter_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="before the folder"):
        name_of_folder(Path("/1"))
