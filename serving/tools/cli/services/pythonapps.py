"""Finds the web apps in a folder of Python files from the syntax trees, without importing a file.

Input: a folder. Output: apps with module, object and kind, and commands that run them. An app imported from another
module belongs to that module. Files with invalid Python are skipped.
"""

import ast
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

ASGI, WSGI, SCRIPT = "ASGI", "WSGI", "script"

# Classes and functions that create an app, by package and last name.
_MAKERS: Final[Mapping[tuple[str, str], str]] = {
    **dict.fromkeys(
        (
            *(("fastapi", "FastAPI"), ("starlette", "Starlette"), ("quart", "Quart"), ("litestar", "Litestar")),
            *(("socketio", "ASGIApp"), ("fasthtml", "FastHTML"), ("fasthtml", "fast_app"), ("shiny", "App")),
            *(("blacksheep", "Application"), ("django", "get_asgi_application"), ("connexion", "AsyncApp")),
        ),
        ASGI,
    ),
    **dict.fromkeys(
        (
            *(("flask", "Flask"), ("apiflask", "APIFlask"), ("bottle", "Bottle"), ("bottle", "default_app")),
            *(("falcon", "App"), ("django", "get_wsgi_application"), ("pyramid", "make_wsgi_app")),
            *(("socketio", "WSGIApp"), ("connexion", "FlaskApp"), ("werkzeug", "DispatcherMiddleware")),
        ),
        WSGI,
    ),
    ("sanic", "Sanic"): "sanic",
}
# Plain functions are apps if their parameters match.
_PARAMETERS: Final = {("scope", "receive", "send"): ASGI, ("environ", "start_response"): WSGI}
# Tools that run a file: the imported package, which is also the program's name, and the command.
_TOOLS: Final = {
    "streamlit": "streamlit run {path} --server.port $PORT --server.headless true --browser.gatherUsageStats false",
    "chainlit": "chainlit run {path} --headless --port $PORT",
    "panel": "panel serve {path} --port $PORT --allow-websocket-origin '*'",
    "marimo": "marimo run {path} --headless --port $PORT",
}
# Packages whose servers read another variable than PORT.
_VARIABLES: Final = {"gradio": "GRADIO_SERVER_PORT=$PORT "}
_SERVERS: Final = {
    ASGI: {
        "uvicorn": "uvicorn {target} --port $PORT",
        "hypercorn": "hypercorn {target} --bind 127.0.0.1:$PORT",
        "granian": "granian {target} --interface asgi --port $PORT",
        "daphne": "daphne {target} --port $PORT",
    },
    WSGI: {
        "gunicorn": "gunicorn {target} --bind 127.0.0.1:$PORT --threads 8",
        "waitress-serve": "waitress-serve --listen=127.0.0.1:$PORT {target}",
        "flask": "flask --app {target} run --port $PORT",
    },
    "sanic": {"sanic": "sanic {target} --host 127.0.0.1 --port $PORT"},
}
# File names in order of precedence: for the app alone, often with an app, and programs.
_ENTRIES: Final = ("asgi.py", "wsgi.py")
_MODULES: Final = ("main.py", "app.py", "server.py", "api.py", "application.py", "index.py", "run.py")
_FOLDERS: Final = ("", "app", "src", "src/app")
_MAIN: Final = "__main__.py"
_NO_APPS: Final = ("tests", "test", "docs", "migrations")
_FACTORIES: Final = ("create_app", "make_app")
_NAMES: Final = ("app", "application", "api", "server")
_DEPTH_MAX = 3
_BYTES_MAX = 2**20


class PythonApp(msgspec.Struct, frozen=True, kw_only=True):
    """An app: ``name`` is the object in ``path``, or "" for a file to run. ``origin`` is where the object is created.

    ``kind`` is the framework or protocol. ``is_factory``: the object is a function that returns the app.
    """

    path: Path
    name: str
    kind: str
    origin: tuple[Path, str]
    is_factory: bool = False

    def __str__(self) -> str:
        return f"{self.path} has the {self.kind} app {self.name}" if self.name else str(self.path)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A way to run a folder.

    ``source`` says where it was found. ``missing`` is a required Python package that is not installed. ``is_grpc``: the
    app speaks HTTP/2 with prior knowledge.
    """

    source: str
    command: str = ""
    missing: str = ""
    is_grpc: bool = False


class _Module:
    """The top-level names of one file."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self.values: dict[str, ast.expr] = {}
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.calls = False
        tree = _tree_of(folder / path)
        for node in ast.walk(tree):
            self._add_import(node)
        for statement in tree.body:
            self._add(statement)

    def _add_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                self.imports[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            package = self.path.parts[: len(self.path.parts) - node.level] if node.level else ()
            module = ".".join((*package, *([node.module] if node.module else ())))
            for alias in node.names:
                if alias.name == "*":
                    self.stars.append(module)
                else:
                    self.imports[alias.asname or alias.name] = f"{module}.{alias.name}"

    def _add(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            self.values[statement.target.id] = statement.value
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                # `app, route = fast_app()`: the first name is the app.
                first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
                if isinstance(first, ast.Name):
                    self.values[first.id] = statement.value
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        self.calls |= (
            isinstance(statement, ast.If | ast.Expr | ast.With | ast.For | ast.While | ast.Try) and not is_text
        )

    def dotted(self, node: ast.expr) -> str:
        """The full dotted name of an expression such as ``flask.Flask``; "" for any other expression."""
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return before and f"{before}.{node.attr}"
        if isinstance(node, ast.Call):
            return self.dotted(node.func)
        if not isinstance(node, ast.Name):
            return ""
        return self.imports.get(node.id) or (f"{self.stars[0]}.{node.id}" if self.stars else node.id)


def python_apps(folder: Path) -> list[PythonApp]:
    """The apps of a folder, without duplicates.

    If asgi.py or wsgi.py has an app, only these files count. Other modules are searched next, then programs and
    packages.
    """
    for names in (_ENTRIES, _MODULES):
        apps: dict[tuple[Path, str], PythonApp] = {}
        for path in _files(folder, names):
            for app in _apps_of(folder, path):
                apps.setdefault(app.origin, app)
        if apps:
            return [*apps.values()]
    programs = _programs(folder, [path for path in _files(folder, _MODULES) if path.name != "__init__.py"])
    return programs or [*_packaged_apps(folder)]


def _packaged_apps(folder: Path) -> Iterator[PythonApp]:
    """The app of each package at the top or below src, else its ``__main__.py``."""
    for package in _packages(folder):
        paths = [package / name for name in (*_ENTRIES, *_MODULES, "__init__.py", _MAIN)]
        paths = [path for path in paths if (folder / path).is_file()]
        apps = {app.origin: app for path in reversed(paths) for app in _apps_of(folder, path)}
        mains = [path for path in paths if path.name == _MAIN]
        if apps:
            yield from [*apps.values()][-1:]
        elif mains:
            yield PythonApp(path=mains[0], name="", kind=SCRIPT, origin=(mains[0], ""))


def _packages(folder: Path) -> Iterator[Path]:
    for below in ("", "src"):
        for path in sorted((folder / below).glob("*/__init__.py")):
            if path.parent.name not in _NO_APPS:
                yield path.parent.relative_to(folder)


def lone_programs(folder: Path) -> list[PythonApp]:
    """The apps in Python files at the top of a folder, whatever their names; else the files that run as programs."""
    names = (path.relative_to(folder) for path in sorted(folder.glob("*.py")))
    paths = [path for path in names if path.name not in {"setup.py", "conftest.py"}]
    apps = {app.origin: app for path in paths for app in _apps_of(folder, path)}
    return [*apps.values()] or _programs(folder, paths)


def syntax_error(folder: Path) -> str:
    """The first syntax error in the Python files at the top of a folder, as in "app.py:2: invalid syntax"; else ""."""
    for path in sorted(folder.glob("*.py")):
        try:
            _parsed(path)
        except (OSError, ValueError, RecursionError):
            continue
        except SyntaxError as error:
            return f"{path.name}:{error.lineno or 1}: {error.msg}"
    return ""


def _files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    for below in _FOLDERS:
        yield from (Path(below) / name for name in names if (folder / below / name).is_file())
        if below and "main.py" in names and (folder / below / "__init__.py").is_file():
            yield Path(below) / "__init__.py"


def _apps_of(folder: Path, path: Path) -> list[PythonApp]:
    module = _Module(folder, path)
    apps = []
    imported = [name for name in _NAMES if name in module.imports]
    for name in dict.fromkeys([*module.values, *module.functions, *imported]):
        kind, origin = _kind_of(module, name)
        if kind:
            apps.append(PythonApp(path=path, name=name, kind=kind, origin=origin))
    # Apps inside other apps have other names.
    named = [app for name in _NAMES for app in apps if app.name == name]
    if named or apps:
        return named[:1] or apps
    for name in _FACTORIES:
        kind = _made_in(module, name)
        if kind:
            return [PythonApp(path=path, name=name, kind=kind, origin=(path, name), is_factory=True)]
    return []


def _kind_of(module: _Module, name: str, depth: int = 0) -> tuple[str, tuple[Path, str]]:
    """The kind of the app with this name ("" if it is no app), and the place of its creation."""
    here = (module.path, name)
    if name in module.functions:
        parameters = tuple(argument.arg for argument in module.functions[name].args.args)
        return _PARAMETERS.get(parameters, ""), here
    value = module.values.get(name)
    other: tuple[_Module, str] | None = None
    if value is None:
        other = _local(module, module.imports.get(name, ""))
    elif isinstance(value, ast.Name) and value.id != name:
        other = module, value.id
    if other is not None:
        return _kind_of(*other, depth + 1) if depth < _DEPTH_MAX else ("", here)
    return (_kind_of_value(module, value) if value is not None else ""), here


def _kind_of_value(module: _Module, value: ast.expr) -> str:
    if isinstance(value, ast.Attribute) and value.attr == "server" and isinstance(value.value, ast.Name):
        # `server = app.server` of Dash is a Flask app.
        return WSGI if module.dotted(module.values.get(value.value.id, value)).startswith("dash") else ""
    if not isinstance(value, ast.Call):
        return ""
    maker = module.dotted(value)
    kind = _made_by(maker)
    if not kind and isinstance(value.func, ast.Name):
        other = (module, value.func.id) if value.func.id in module.functions else _local(module, maker)
        kind = _made_in(*other) if other else ""
    return kind


def _made_by(maker: str) -> str:
    package, _, name = maker.partition(".")
    kind = _MAKERS.get((package, name.rpartition(".")[2]), "")
    return ASGI if kind and ".asgi." in maker else kind


def _made_in(module: _Module, function: str) -> str:
    """The kind of the app that a function creates; "" if it creates no app."""
    body = module.functions.get(function)
    calls = (node for node in ast.walk(body) if isinstance(node, ast.Call)) if body else ()
    return next((kind for call in calls if (kind := _made_by(module.dotted(call)))), "")


def _local(module: _Module, dotted: str) -> tuple[_Module, str] | None:
    """The module of the folder and the name in it, for a dotted name: shop/web.py and "app" for "shop.web.app".

    None if the folder has no such module.
    """
    parent, _, name = dotted.rpartition(".")
    below = Path(*parent.split(".")) if parent else Path()
    for base in dict.fromkeys((Path(), Path("src"), module.path.parent)):
        for path in (base / below.with_suffix(".py"), base / below / "__init__.py") if parent else ():
            if (module.folder / path).is_file() and path != module.path:
                return _Module(module.folder, path), name
    return None


def _programs(folder: Path, paths: Collection[Path]) -> list[PythonApp]:
    """The files that have top-level statements and are not imported by others."""
    modules = [_Module(folder, path) for path in paths]
    imported = {part for module in modules for name in module.imports.values() for part in name.split(".")}
    return [
        PythonApp(path=module.path, name="", kind=SCRIPT, origin=(module.path, ""))
        for module in modules
        if module.calls and module.path.stem not in imported
    ]


def command_of_app(folder: Path, app: PythonApp, *, has: Callable[[str], bool], python: str) -> Choice:
    """The command that runs an app with an installed server. ``has`` returns whether a program is installed."""
    module = _Module(folder, app.path)
    packages = {name.partition(".")[0] for name in module.imports.values()}
    path = shlex.quote(str(app.path))
    root = _root_of(folder, app.path, packages)
    dotted = ".".join(app.path.relative_to(root).with_suffix("").parts)
    prefix = f"PYTHONPATH={shlex.quote(str(root))} " if root.parts else ""
    if not app.name:
        tool = next((tool for tool in _TOOLS if tool in packages and has(tool)), None)
        variable = next((text for package, text in _VARIABLES.items() if package in packages), "")
        command = _TOOLS[tool].format(path=path) if tool else f"{variable}{python} {path}"
        if app.path.name == _MAIN and "." in dotted:
            command = f"{prefix}{variable}{python} -m {dotted.rpartition('.')[0]}"
        return Choice(source=str(app), command=command, is_grpc=not tool and "grpc" in packages)
    target = f"{dotted.removesuffix('.__init__')}:{app.name}"
    for program, template in _SERVERS[app.kind].items():
        if has(program):
            is_called = app.is_factory and app.kind == WSGI
            command = template.format(target=f"'{target}()'" if is_called else target)
            return Choice(
                source=str(app), command=f"{prefix}{command}{' --factory' if app.is_factory and not is_called else ''}"
            )
    return Choice(source=str(app), missing=next(iter(_SERVERS[app.kind])))


def _root_of(folder: Path, path: Path, imported: Collection[str]) -> Path:
    """The working directory in which the imports of the app ``path`` work, relative to ``folder``.

    This is src for a package in src, the file's own folder if the file imports modules from there, else ``folder``.
    """
    if path.parts[0] == "src" and len(path.parts) > 2 and not (folder / "src" / "__init__.py").exists():
        return Path("src")
    is_inner = any(_is_module(folder / path.parent, name) and not _is_module(folder, name) for name in imported)
    return path.parent if is_inner else Path()


def _is_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def django_settings(folder: Path) -> str:
    """The settings module named in manage.py; "" if there is none."""
    for node in ast.walk(_tree_of(folder / "manage.py")):
        match node:
            case ast.Call(args=[ast.Constant(value="DJANGO_SETTINGS_MODULE"), ast.Constant(value=str(settings))]):
                return settings
    return ""


def django_command(folder: Path, *, has: Callable[[str], bool], python: str) -> Choice:
    """The command of a Django project: an installed server with the WSGI or ASGI module, else Django's server."""
    parts = django_settings(folder).split(".")[:-1]
    for kind, name in ((WSGI, "wsgi"), (ASGI, "asgi")):
        for depth in range(len(parts), 0, -1):
            path = Path(*parts[:depth], f"{name}.py")
            programs = [program for program in _SERVERS[kind] if program != "flask" and has(program)]
            if programs and (folder / path).is_file():
                target = f"{'.'.join(path.with_suffix('').parts)}:application"
                return Choice(source=f"manage.py, {path}", command=_SERVERS[kind][programs[0]].format(target=target))
    return Choice(source="manage.py", command=f"{python} manage.py runserver --noreload 127.0.0.1:$PORT")


def _tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file; an empty tree for invalid Python."""
    try:
        return _parsed(path)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _parsed(path: Path) -> ast.Module:
    with path.open("rb") as file:
        return ast.parse(file.read(_BYTES_MAX))
