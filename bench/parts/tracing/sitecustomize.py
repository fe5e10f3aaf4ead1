"""Notes calls of functions in every Python process of ``bench/cold_start.py --trace``.

Python imports a module of this name at its start (site). With ``BENCH_TRACE`` in the environment it wraps the functions
of ``STEPS`` as their modules are imported, and each call appends a line to that file: seconds since the epoch and what
happens.
"""

import functools
import importlib.abc
import importlib.machinery
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
    ("app is executed", "", ""),
    ("process has its order", "serving.home.processes.spawn", "Spawner._take_place"),
    ("queue-proxy probes first", "serving.queueproxy.io.podservice", "PodService._watch_app"),
    ("app takes a connection", "", ""),
    ("queue-proxy reports readiness", "serving.queueproxy.io.readiness", "ReadinessPipe.push"),
    ("kubelet hears of it", "serving.home.kubelet.pod", "PodRun._set_proxy_ready"),
    ("control writes the slice", "serving.home.controllers.manager", "Manager._settle_slice"),
    ("activator sees the slice", "serving.activator.queueing.router", "RequestRouter.set_slice"),
    ("activator sends the request", "serving.activator.io.ingress", "Ingress._dispatch"),
    ("client has the answer", "", ""),
)
"""The way of the first request in order: what happens, and the function whose call says so; without one, the app or client says it."""

_MODULES = {module for _, module, _ in STEPS}
# Kept: a fork of the template has another environment.
_PATH = os.environ.get(_VARIABLE, "")


def _note(what: str) -> None:
    # Opened each time: a fork closes descriptors.
    descriptor = os.open(_PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{time.time():.6f} {what}\n".encode())
    os.close(descriptor)


def _noted(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any function's
        _note(what)
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
        for what, path in [(what, path) for what, of, path in STEPS if of == module.__name__]:
            owner: Any = module
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            setattr(owner, name, _noted(getattr(owner, name), what))


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
    sys.meta_path.insert(0, _Finder())
