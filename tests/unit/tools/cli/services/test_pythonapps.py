from collections.abc import Mapping
from pathlib import Path

import pytest

from serving.tools.cli.services.pythonapps import (
    command_of_app,
    django_command,
    lone_programs,
    python_apps,
    syntax_error,
)

UVICORN, GUNICORN = "uvicorn {} --port $PORT", "gunicorn {} --bind 127.0.0.1:$PORT --threads 8"
FASTAPI, FLASK = "from fastapi import FastAPI\napp = FastAPI()\n", "import flask\napp = flask.Flask(__name__)\n"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def commands_of(folder: Path, *programs: str) -> list[str]:
    apps = python_apps(folder) or lone_programs(folder)
    choices = [command_of_app(folder, app, has={*programs}.__contains__, python="python") for app in apps]
    return [choice.command or f"needs {choice.missing}" for choice in choices]


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"main.py": FASTAPI}, UVICORN.format("main:app")),
        ({"app.py": FLASK}, GUNICORN.format("app:app")),
        ({"app.py": "from flask import Flask as F\nsite: F = F('x')"}, GUNICORN.format("app:site")),
        ({"app.py": "from falcon.asgi import App\napplication = App()"}, UVICORN.format("app:application")),
        ({"app.py": "import falcon\napi = falcon.App()"}, GUNICORN.format("app:api")),
        ({"main.py": "async def app(scope, receive, send): ..."}, UVICORN.format("main:app")),
        ({"main.py": "def app(environ, start_response): ..."}, GUNICORN.format("main:app")),
        ({"main.py": "from fasthtml.common import *\napp, rt = fast_app()"}, UVICORN.format("main:app")),
        ({"app.py": "import dash\napp = dash.Dash()\nserver = app.server"}, GUNICORN.format("app:server")),
        ({"main.py": f"{FASTAPI}admin = FastAPI()\napp.mount('/admin', admin)"}, UVICORN.format("main:app")),
        # The app is imported from another module.
        ({"wsgi.py": "from app import app as application", "app.py": FLASK}, GUNICORN.format("wsgi:application")),
        ({"main.py": "from app import app\napp.run()", "app.py": FLASK}, GUNICORN.format("main:app")),
        ({"main.py": "from shop import api as app", "shop/__init__.py": "from .web import api", "shop/web.py": "from fastapi import FastAPI\napi = FastAPI()"}, UVICORN.format("main:app")),
        # Factories.
        ({"app.py": "from flask import Flask\ndef create_app():\n    return Flask('x')"}, GUNICORN.format("'app:create_app()'")),
        ({"main.py": "from fastapi import FastAPI\ndef make_app():\n    return FastAPI()"}, UVICORN.format("main:make_app") + " --factory"),
        ({"wsgi.py": "from shop import create_app\napp = create_app()", "shop/__init__.py": "from flask import Flask\ndef create_app():\n    return Flask('x')"}, GUNICORN.format("wsgi:app")),
        # Folders.
        ({"app/main.py": FASTAPI}, UVICORN.format("app.main:app")),
        ({"app/__init__.py": FLASK}, GUNICORN.format("app:app")),
        ({"src/main.py": f"import helper\n{FASTAPI}", "src/helper.py": ""}, f"PYTHONPATH=src {UVICORN.format('main:app')}"),
        ({"main.py": "from shop.web import app", "shop/web.py": FASTAPI, "api.py": "x = 1"}, UVICORN.format("main:app")),
        ({"src/app/main.py": f"from app.db import x\n{FASTAPI}", "src/app/db.py": ""}, f"PYTHONPATH=src {UVICORN.format('app.main:app')}"),
        # Packages with another name than app or src.
        ({"shop/__init__.py": "from flask import Flask\ndef create_app(config=None):\n    return Flask('x')", "tests/__init__.py": FLASK}, GUNICORN.format("'shop:create_app()'")),
        ({"shop/__init__.py": "", "shop/app.py": FLASK, "shop/__main__.py": "print(1)"}, GUNICORN.format("shop.app:app")),
        ({"src/shop/__init__.py": "from .web import app", "src/shop/web.py": FASTAPI}, f"PYTHONPATH=src {UVICORN.format('shop:app')}"),
        ({"src/shop/__init__.py": "", "src/shop/__main__.py": "print(1)"}, "PYTHONPATH=src python -m shop"),
        ({"shop/__init__.py": "", "shop/__main__.py": "import gradio"}, "GRADIO_SERVER_PORT=$PORT python -m shop"),
        ({"main.py": "import uvicorn\nuvicorn.run('shop.app:app')", "shop/__init__.py": "", "shop/app.py": FASTAPI}, "python main.py"),
        # Scripts.
        ({"app.py": "import streamlit as st\nst.title('x')"}, "streamlit run app.py --server.port $PORT --server.headless true --browser.gatherUsageStats false"),
        ({"app.py": "import gradio as gr\ngr.Interface(f).launch()"}, "GRADIO_SERVER_PORT=$PORT python app.py"),
        ({"main.py": "import helper\nhelper.run()", "helper.py": "def run(): ..."}, "python main.py"),
        ({"shop server.py": "print(1)"}, "python 'shop server.py'"),
    ],
)  # fmt: skip
def test_python_app_command_uses_the_server_of_its_framework(
    tmp_path: Path, files: Mapping[str, str], command: str
) -> None:
    assert commands_of(written(tmp_path, files), "uvicorn", "gunicorn", "streamlit") == [command]


def test_several_apps_are_several_choices(tmp_path: Path) -> None:
    written(tmp_path, {"main.py": FASTAPI, "app.py": FLASK})
    assert commands_of(tmp_path, "uvicorn", "gunicorn") == [UVICORN.format("main:app"), GUNICORN.format("app:app")]


@pytest.mark.parametrize(
    ("programs", "command"),
    [
        (["waitress-serve", "flask"], "waitress-serve --listen=127.0.0.1:$PORT app:app"),
        (["flask"], "flask --app app:app run --port $PORT"),
        ([], "needs gunicorn"),
    ],
)
def test_python_app_command_uses_an_installed_server(tmp_path: Path, programs: list[str], command: str) -> None:
    assert commands_of(written(tmp_path, {"app.py": FLASK}), *programs) == [command]


@pytest.mark.parametrize(
    "text", ["app = (", "import app\napp = app", "from . import app", "app = 5", "def f(): pass", "'''Text.'''", "\0"]
)
def test_module_without_an_app_yields_no_command(tmp_path: Path, text: str) -> None:
    assert commands_of(written(tmp_path, {"app.py": text}), "uvicorn") == []


def test_circular_imports_yield_no_command(tmp_path: Path) -> None:
    assert commands_of(written(tmp_path, {"main.py": "from app import app", "app.py": "from main import app"})) == []


@pytest.mark.parametrize(
    ("files", "programs", "command"),
    [
        ({"shop/wsgi.py": "", "shop/asgi.py": ""}, ["gunicorn"], GUNICORN.format("shop.wsgi:application")),
        ({"shop/wsgi.py": "", "shop/asgi.py": ""}, ["uvicorn"], UVICORN.format("shop.asgi:application")),
        ({"shop/wsgi.py": ""}, ["uvicorn", "flask"], "python manage.py runserver --noreload 127.0.0.1:$PORT"),
    ],
)
def test_django_command_uses_the_project_module(
    tmp_path: Path, files: Mapping[str, str], programs: list[str], command: str
) -> None:
    text = "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings.local')"
    written(tmp_path, {"manage.py": text, **files})
    assert django_command(tmp_path, has={*programs}.__contains__, python="python").command == command


def test_a_syntax_error_names_its_file_and_line(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": "x = 1\n", "app.py": "from flask import Flask\napp = Flask(__name__\n"})
    assert syntax_error(tmp_path) == "app.py:2: '(' was never closed"
    assert syntax_error(tmp_path / "none") == ""
