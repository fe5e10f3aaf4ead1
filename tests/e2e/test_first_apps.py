"""Apps of well-known frameworks, each deployed by `serving deploy FOLDER --build` without further options.

Needs PyPI and npm.
"""

import json
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import grpc  # type: ignore[import-untyped]  # it has no types
import pytest

from serving.core.model.knative import SERVICE_LABEL
from serving.home.processes.mounts import can_mount
from tests.e2e.cli_stage import Stage, staged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_mount(), reason="an app that ignores $PORT needs a network of its own"),
]

_DJANGO_SETTINGS = """
SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "site1.urls"
"""
_DJANGO = {
    "manage.py": "import os, sys\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'site1.settings')\n"
    "from django.core.management import execute_from_command_line\nexecute_from_command_line(sys.argv)\n",
    "site1/__init__.py": "",
    "site1/settings.py": _DJANGO_SETTINGS,
    "site1/urls.py": "from django.http import HttpResponse\nfrom django.urls import path\n"
    "urlpatterns = [path('', lambda request: HttpResponse('hello'))]\n",
    "site1/wsgi.py": "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'site1.settings')\n"
    "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n",
    "site1/asgi.py": "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'site1.settings')\n"
    "from django.core.asgi import get_asgi_application\napplication = get_asgi_application()\n",
}
_FLASK = "from flask import Flask\n{0} = Flask(__name__)\n{0}.route('/')(lambda: 'hello')\n"
_FASTAPI = "from fastapi import FastAPI\napp = FastAPI()\napp.get('/')(lambda: 'hello')\n"
_AT_ZERO_S = 120.0
_HTTP_SERVER = """import http.server, os
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'hello')
http.server.HTTPServer(('', int(os.environ.get('PORT', 8000))), H).serve_forever()
"""


def _package(dependencies: Mapping[str, str], **scripts: str) -> str:
    return json.dumps({"private": True, "dependencies": dependencies, "scripts": scripts})


class App(NamedTuple):
    """The files of an app, the path of its page, and a text of the page."""

    files: Mapping[str, str]
    path: str = "/"
    text: str = "hello"


APPS = {
    "flask": App({"requirements.txt": "flask\ngunicorn\n", "app.py": _FLASK.format("app")}),
    "flask-alone": App({"requirements.txt": "flask\n", "app.py": f"{_FLASK.format('app')}app.run(port=5000)\n"}),
    "flask-factory": App(
        {
            "requirements.txt": "flask\nwaitress\n",
            "shop/__init__.py": "from flask import Flask\ndef create_app():\n    app = Flask('x')\n"
            "    app.route('/')(lambda: 'hello')\n    return app\n",
            "wsgi.py": "from shop import create_app\napp = create_app()\n",
        }
    ),
    "fastapi": App({"requirements.txt": "fastapi\nuvicorn\n", "main.py": _FASTAPI}),
    "fastapi-package": App({"requirements.txt": "fastapi\nuvicorn\n", "app/main.py": _FASTAPI, "app/__init__.py": ""}),
    "fastapi-alone": App({"requirements.txt": "fastapi\n", "main.py": _FASTAPI}),
    "fastapi-pyproject": App(
        {"pyproject.toml": '[project]\nname = "x"\ndependencies = ["fastapi", "uvicorn"]\n', "src/main.py": _FASTAPI}
    ),
    "starlette": App(
        {
            "requirements.txt": "starlette\nhypercorn\n",
            "main.py": "from starlette.applications import Starlette\nfrom starlette.responses import PlainTextResponse\n"
            "from starlette.routing import Route\napp = Starlette(routes=[Route('/', lambda r: PlainTextResponse('hello'))])\n",
        }
    ),
    "quart": App(
        {
            "requirements.txt": "quart\nhypercorn\n",
            "app.py": "from quart import Quart\napp = Quart(__name__)\n@app.get('/')\nasync def page():\n    return 'hello'\n",
        }
    ),
    "litestar": App(
        {
            "requirements.txt": "litestar\nuvicorn\n",
            "app.py": "from litestar import Litestar, get\n@get('/')\nasync def page() -> str:\n    return 'hello'\n"
            "app = Litestar([page])\n",
        }
    ),
    "django": App({"requirements.txt": "django\ngunicorn\n", **_DJANGO}),
    "django-asgi": App({"requirements.txt": "django\nuvicorn\n", **_DJANGO}),
    "django-alone": App({"requirements.txt": "django\n", **_DJANGO}),
    "bottle": App(
        {
            "requirements.txt": "bottle\nwaitress\n",
            "app.py": "import bottle\napp = bottle.Bottle()\napp.route('/')(lambda: 'hello')\n",
        }
    ),
    "falcon": App(
        {
            "requirements.txt": "falcon\ngunicorn\n",
            "app.py": "import falcon\nclass Page:\n    def on_get(self, request, response):\n        response.text = 'hello'\n"
            "app = falcon.App()\napp.add_route('/', Page())\n",
        }
    ),
    "sanic": App(
        {
            "requirements.txt": "sanic\n",
            "server.py": "from sanic import Sanic, text\napp = Sanic('x')\n@app.get('/')\nasync def page(request):\n"
            "    return text('hello')\n",
        }
    ),
    "aiohttp": App(
        {
            "requirements.txt": "aiohttp\n",
            "main.py": "from aiohttp import web\nasync def page(request):\n    return web.Response(text='hello')\n"
            "app = web.Application()\napp.router.add_get('/', page)\nif __name__ == '__main__':\n    web.run_app(app)\n",
        }
    ),
    "tornado": App(
        {
            "requirements.txt": "tornado\n",
            "main.py": "import asyncio, tornado.web\nclass Page(tornado.web.RequestHandler):\n    def get(self):\n"
            "        self.write('hello')\nasync def main():\n    tornado.web.Application([('/', Page)]).listen(8888)\n"
            "    await asyncio.Event().wait()\nasyncio.run(main())\n",
        }
    ),
    "cherrypy": App(
        {
            "requirements.txt": "cherrypy\n",
            "run.py": "import cherrypy\nclass Page:\n    @cherrypy.expose\n    def index(self):\n        return 'hello'\n"
            "cherrypy.quickstart(Page())\n",
        }
    ),
    "streamlit": App({"requirements.txt": "streamlit\n", "app.py": "import streamlit as st\nst.write('x')\n"}, "/", "Streamlit"),
    "gradio": App(
        {"requirements.txt": "gradio\n", "app.py": "import gradio as gr\ngr.Interface(str, 'text', 'text').launch()\n"},
        text="gradio",
    ),
    "dash": App(
        {
            "requirements.txt": "dash\n",
            "app.py": "from dash import Dash, html\napp = Dash(title='hello')\napp.layout = html.Div('x')\n"
            "if __name__ == '__main__':\n    app.run()\n",
        }
    ),
    "nicegui": App({"requirements.txt": "nicegui\n", "main.py": "from nicegui import ui\nui.label('hello')\nui.run(show=False, reload=False)\n"}),
    "panel": App({"requirements.txt": "panel\n", "app.py": "import panel as pn\npn.pane.Str('x').servable()\n"}, "/app", "Panel"),
    "datasette": App({"requirements.txt": "datasette\n", "Procfile": "web: datasette serve --memory --port $PORT\n"}, text="Datasette"),
    "mlflow": App({"requirements.txt": "mlflow\n", "Procfile": "web: mlflow server --port $PORT --allowed-hosts '*'\n"}, text="MLflow"),
    "socketio": App(
        {
            "requirements.txt": "python-socketio\nuvicorn\n",
            "main.py": "import socketio\nsio = socketio.AsyncServer(async_mode='asgi')\napp = socketio.ASGIApp(sio)\n",
        },
        "/socket.io/?EIO=4&transport=polling",
        '"sid"',
    ),
    "raw-asgi": App(
        {
            "requirements.txt": "uvicorn\n",
            "app.py": "async def app(scope, receive, send):\n"
            "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
            "    await send({'type': 'http.response.body', 'body': b'hello'})\n",
        }
    ),
    "uv": App(
        {
            "pyproject.toml": '[project]\nname = "shop"\nversion = "0.1.0"\nrequires-python = ">=3.11"\ndependencies = ["flask>=3"]\n',
            "uv.lock": "version = 1\n",
            "main.py": f"{_FLASK.format('app')}\ndef main():\n    app.run()\nif __name__ == '__main__':\n    main()\n",
        }
    ),
    # As created by `uv init --package`, with a project script.
    "uv-package": App(
        {
            "pyproject.toml": '[project]\nname = "shop"\nversion = "0.1.0"\ndependencies = ["bottle"]\n[project.scripts]\nshop = "shop:main"\n'
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n',
            "src/shop/__init__.py": "import os, bottle\nbottle.route('/')(lambda: 'hello')\ndef main():\n    bottle.run(port=os.environ['PORT'])\n",
        }
    ),
    "poetry": App(
        {
            "pyproject.toml": '[tool.poetry]\nname = "shop"\nversion = "0.1.0"\ndescription = ""\nauthors = []\npackage-mode = false\n'
            '[tool.poetry.dependencies]\npython = "^3.11"\nflask = "^3.0"\nwaitress = "*"\n'
            '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n',
            "shop/app.py": _FLASK.format("app"),
            "shop/__init__.py": "",
        }
    ),
    # Neither setuptools nor Poetry finds its package.
    "pyproject-flat": App(
        {
            "pyproject.toml": '[project]\nname = "x"\nversion = "1"\ndependencies = ["fastapi", "uvicorn"]\n'
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
            "app/main.py": "from app.words import WORD\n" + _FASTAPI.replace("'hello'", "WORD"),
            "app/words.py": "WORD = 'hello'\n",
            "static/x.css": "",
        }
    ),
    "src-layout": App(
        {
            "pyproject.toml": '[project]\nname = "x"\nversion = "1"\ndependencies = ["flask", "gunicorn"]\n'
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
            "src/shop/__init__.py": "",
            "src/shop/words.py": "WORD = 'hello'\n",
            "src/shop/main.py": "from shop.words import WORD\n" + _FLASK.format("app").replace("'hello'", "WORD"),
        }
    ),
    "flaskr": App(
        {
            "requirements.txt": "flask\n",
            "flaskr/__init__.py": "from flask import Flask\ndef create_app(test_config=None):\n    app = Flask(__name__)\n"
            "    from . import pages\n    app.register_blueprint(pages.bp)\n    return app\n",
            "flaskr/pages.py": "from flask import Blueprint\nbp = Blueprint('pages', __name__)\nbp.route('/')(lambda: 'hello')\n",
        }
    ),
    "module-main": App({"shop/__init__.py": "", "shop/__main__.py": _HTTP_SERVER.replace("'PORT', 8000", "'PORT', 0")}),
    "if-main": App(
        {"app.py": _HTTP_SERVER.replace("http.server.HTTPServer((", "if __name__ == '__main__':\n    http.server.HTTPServer((")}
    ),
    "procfile": App({"Procfile": "release: true\nweb: python3 -u serve_it.py\n", "serve_it.py": _HTTP_SERVER}),
    "gunicorn": App({"requirements.txt": "gunicorn\n", "wsgi.py": "def application(environ, start_response):\n"
        "    start_response('200 OK', [])\n    return [b'hello']\n", "gunicorn.conf.py": "workers = 2\n"}),
    "http-server": App({"server.py": _HTTP_SERVER}),
    "pages": App({"index.html": "<p>hello</p>"}),
    "dist": App({"package.json": '{"scripts": {"dev": "vite"}}', "dist/index.html": "<p>hello</p>"}),
    "express": App(
        {
            "package.json": _package({"express": "4"}, start="node server.js"),
            "server.js": "require('express')().get('/', (q, r) => r.send('hello')).listen(process.env.PORT || 3000)\n",
        }
    ),
    "express-fixed": App(
        {
            "package.json": _package({"express": "4"}),
            "index.js": "require('express')().get('/', (q, r) => r.send('hello')).listen(3000)\n",
        }
    ),
    "fastify": App(
        {
            "package.json": _package({"fastify": "4"}, start="node app.js"),
            "app.js": "const f = require('fastify')()\nf.get('/', async () => 'hello')\nf.listen({port: process.env.PORT})\n",
        }
    ),
    "json-server": App(
        {"package.json": _package({"json-server": "0.17.4"}, start="json-server --port 3000 db.json"), "db.json": '{"posts": [{"id": "hello"}]}'},
        "/posts",
    ),
    "socket.io": App(
        {
            "package.json": _package({"socket.io": "4"}, start="node index.js"),
            "index.js": "new (require('socket.io').Server)(Number(process.env.PORT))\n",
        },
        "/socket.io/?EIO=4&transport=polling",
        '"sid"',
    ),
    "koa": App(
        {
            "package.json": _package({"koa": "2"}, start="node index.js"),
            "index.js": "const app = new (require('koa'))()\napp.use(c => { c.body = 'hello' })\napp.listen(process.env.PORT || 3000)\n",
        }
    ),
    # Hono's template has a fixed port and a TypeScript build.
    "hono": App(
        {
            "package.json": json.dumps(
                {
                    "private": True,
                    "type": "module",
                    "dependencies": {"hono": "4", "@hono/node-server": "1"},
                    "devDependencies": {"typescript": "5", "@types/node": "20"},
                    "scripts": {"dev": "tsx watch src/index.ts", "build": "tsc", "start": "node dist/index.js"},
                }
            ),
            "tsconfig.json": '{"compilerOptions": {"module": "NodeNext", "target": "ES2022", "outDir": "dist", "rootDir": "src", "skipLibCheck": true}}',
            "src/index.ts": "import { serve } from '@hono/node-server'\nimport { Hono } from 'hono'\nconst app = new Hono()\n"
            "app.get('/', (c) => c.text('hello'))\nserve({ fetch: app.fetch, port: 3000 })\n",
        }
    ),
    "node-http-server": App(
        {"package.json": _package({"http-server": "14"}, start="http-server -p 8081 pages"), "pages/index.html": "<p>hello</p>"}
    ),
    "vite-preview": App(
        {
            "package.json": json.dumps(
                {"private": True, "devDependencies": {"vite": "5"}, "scripts": {"build": "vite build", "start": "vite preview"}}
            ),
            "index.html": "<script type=module src=/main.js></script>hello",
            "main.js": "console.log(1)",
        }
    ),
    "vite": App(
        {
            "package.json": json.dumps({"private": True, "devDependencies": {"vite": "5"}, "scripts": {"build": "vite build"}}),
            "index.html": "<script type=module src=/main.js></script>hello",
            "main.js": "console.log(1)",
        }
    ),
    "next-static": App(
        {
            "package.json": _package({"next": "14", "react": "18", "react-dom": "18"}, build="next build", start="next start"),
            "next.config.js": "module.exports = {output: 'export'}\n",
            "pages/index.js": "export default () => 'hello'\n",
        }
    ),
}  # fmt: skip
# A grpcio server at the port of grpcio's examples.
_GRPC = """
from concurrent import futures
import grpc

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"hello " + request)

server = grpc.server(futures.ThreadPoolExecutor())
server.add_generic_rpc_handlers((Handler(),))
server.add_insecure_port("[::]:50051")
server.start()
server.wait_for_termination()
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("apps")
    venv.create(folder / "venv", with_pip=True)
    download = [f"{folder}/venv/bin/python", "-m", "pip", "download", "--no-deps", "-d", str(folder), "itsdangerous"]
    if subprocess.run(download, capture_output=True, check=False).returncode:
        pytest.skip("no package index here")
    with staged(folder / "state", SERVING_AUTOSCALER_POLICY="knative", SERVING_AUTOSCALER_STABLE_WINDOW_S="6") as stage:
        yield stage


@pytest.mark.parametrize("name", APPS)
def test_framework_app_is_deployed_by_build_alone(serving: Stage, name: str, tmp_path: Path) -> None:
    app, folder = APPS[name], tmp_path / name
    _write(folder, app.files)
    done = serving("deploy", str(folder), "--build")
    sys.stderr.write(done.stderr)
    service = name.replace(".", "-")
    assert app.text in serving("invoke", service, app.path).stdout
    until_s = time.monotonic() + _AT_ZERO_S
    while pods := serving("get", "pods", "-l", f"{SERVICE_LABEL}={service}", "-o", "name").stdout:
        assert time.monotonic() < until_s, pods
        time.sleep(0.2)
    assert app.text in serving("invoke", service, app.path).stdout
    serving("delete", service)


def test_grpc_server_is_deployed_by_build_alone(serving: Stage, tmp_path: Path) -> None:
    _write(tmp_path / "grpc", {"requirements.txt": "grpcio\n", "server.py": _GRPC})
    done = serving("deploy", str(tmp_path / "grpc"), "--build")
    sys.stderr.write(done.stderr)
    host = done.stdout.splitlines()[0].removeprefix("http://")
    options = [("grpc.default_authority", host.partition(":")[0])]
    with grpc.insecure_channel(f"127.0.0.1:{host.rpartition(':')[2]}", options=options) as channel:
        assert channel.unary_unary("/echo.Echo/Say")(b"world", timeout=60) == b"hello world"
    serving("delete", "grpc")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
