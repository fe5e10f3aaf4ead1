"""Notes calls of functions in every Python process of ``bench/cold_start.py --life``.

Python imports a module of this name at its start (site). With ``BENCH_TRACE`` in the environment it wraps the functions
of ``STEPS`` and ``COUNTS`` as their modules are imported, and each call appends a line to that file: seconds since the
epoch, the process, the CPU that it has used, and what happens.
"""

import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_VARIABLE = "BENCH_TRACE"

STEPS = (
    ("activator has the request", "serving.activator.io.ingress", "Ingress.begin"),
    ("activator reports the load", "serving.activator.io.reports", "StatsClient.report"),
    ("autoscaler decides", "serving.autoscaler.io.decision_loop", "DecisionLoop._decide"),
    ("autoscaler writes the scale", "serving.autoscaler.io.scale_writes", "ScaleClient.scale"),
    ("control sees the scale", "serving.home.controllers.manager", "Manager._settle_pods"),
    ("control creates the pod", "serving.home.controllers.manager", "Manager._create_pod"),
    ("kubelet has the pod", "serving.home.kubelet.pod", "PodRun._start"),
    ("kubelet orders the app", "serving.home.processes.processruntime", "ProcessRuntime.start"),
    ("template looks for a warm process", "serving.home.processes.preload_apps", "PreloadedApps.start"),
    ("template forks the app", "serving.home.processes.spawn", "Spawner.begin"),
    ("app is forked", "serving.home.processes.spawn", "Spawner._exec_app"),
    ("process has its order", "serving.home.processes.spawn", "Spawner._apply_assignment"),
    ("queue-proxy probes first", "serving.queueproxy.io.podservice", "PodService._watch_app"),
    ("queue-proxy reports readiness", "serving.queueproxy.io.readiness", "ReadinessPipe.push"),
    ("kubelet hears of it", "serving.home.kubelet.pod", "PodRun._set_proxy_ready"),
    ("control writes the slice", "serving.home.controllers.manager", "Manager._settle_slice"),
    ("activator sees the slice", "serving.activator.queueing.router", "RequestRouter.set_slice"),
    ("activator sends the request", "serving.activator.io.ingress", "Ingress._dispatch"),
)
"""The way of the first request in order: what happens, and the function whose call says so."""


def _request(_: object, request: Any) -> str:  # noqa: ANN401 - an aiohttp request
    agent = request.headers.get("User-Agent", "").partition("/")[0]
    below = request.path.partition("/namespaces/")[2]
    return "" if "watch" in request.query else f"request: {agent} {request.method} {'/'.join(below.split('/')[1::2])}"


def _offer(watch: Any, change: Any) -> str:  # noqa: ANN401 - a watch and a change of the store
    return f"event in control: {json.loads(change.new.encoded)['kind']}" if change.seen_by(watch.wanted) else ""


COUNTS: tuple[tuple[str, str, Callable[..., str]], ...] = (
    *(("serving.home.apiserver.server", f"_ApiHandlers.{name}", _request) for name in ("resource", "write_together")),
    ("serving.controller.io.controller", "Controller._work", lambda _, key: f"decision: {key[0].plural}"),
    ("serving.home.controllers.manager", "Manager._work", lambda _, key: f"manager: {key[0]}"),
    ("serving.home.store.state", "StoreState.apply", lambda _, kind, *__, **___: f"write: {kind.plural}"),
    ("serving.home.store.history", "Watch.offer", _offer),
    ("serving.home.apiserver.watching", "_event_line", lambda _, kind, __: f"event over HTTP: {kind.plural}"),
)
"""Functions whose calls are counted, and the text of a call; "" is not counted."""

# Kept: a fork of the template has another environment.
_PATH = os.environ.get(_VARIABLE, "")
_WRAPPED: list[tuple[str, str, Callable[..., str]]] = [
    *((module, path, lambda *_, what=what, **__: what) for what, module, path in STEPS),
    *COUNTS,
]
_MODULES = {module for module, *_ in _WRAPPED}


def _record(what: str) -> None:
    # Opened each time: a fork closes descriptors.
    descriptor = os.open(_PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{time.time():.6f} {os.getpid()} {time.process_time():.6f} {what}\n".encode())
    os.close(descriptor)


def _noted(function: Callable[..., Any], text: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any function's
        if what := text(*arguments, **named):
            _record(what)
        return function(*arguments, **named)

    return wrapper


class _Loader(importlib.abc.Loader):
    """Loads a module as another loader does, and wraps its functions."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for path, text in [(path, text) for of, path, text in _WRAPPED if of == module.__name__]:
            owner: Any = module
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            setattr(owner, name, _noted(getattr(owner, name), text))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if _PATH:
    os.register_at_fork(before=lambda: _record("fork"))
    sys.meta_path.insert(0, _Finder())
