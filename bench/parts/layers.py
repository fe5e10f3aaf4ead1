"""Measures each layer of ``serving up --isolation``: medians over forks that put all of them on."""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from bench.parts.program import show
from serving.home.processes.confine import confine
from serving.home.processes.isolation import isolation_of, plan_of

FORKS = 200


def measure_layers(options: argparse.Namespace) -> int:
    """Measure both modes, and print the milliseconds of each layer."""
    found = {}
    for mode in ("default", "strict"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "pods" / "pod"
            folder.mkdir(parents=True)
            isolation = isolation_of(mode, Path(name))
            assert isolation is not None
            wanted = isolation.confinement(address="127.64.0.1", shown=(str(folder),), ports=(8080,))
            plan = plan_of(msgspec.structs.replace(wanted, is_strict=False))
            runs = [_run(plan, str(folder)) for _ in range(10 if options.quick else FORKS)]
        layers = {layer: _median_ms([run.get(layer, 0.0) for run in runs]) for layer in runs[0]}
        found[mode] = {**layers, "total": _median_ms([sum(run.values()) for run in runs])}
    show({f"{mode}_{layer}_ms": value for mode, layers in found.items() for layer, value in layers.items()}, options)
    return 0


def _run(plan: dict[str, object], folder: str) -> dict[str, float]:
    """The seconds of each layer in one fork."""
    mine, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        took: dict[str, float] = {}
        last_s = time.perf_counter()

        def after(layer: str) -> None:
            nonlocal last_s
            now_s = time.perf_counter()
            took[layer] = took.get(layer, 0.0) + now_s - last_s
            last_s = now_s

        confine(plan, folder, after)
        os.write(its, json.dumps(took).encode())
        os._exit(0)
    os.close(its)
    with os.fdopen(mine) as pipe:
        found: dict[str, float] = json.load(pipe)
    os.waitpid(pid, 0)
    return found


def _median_ms(values_s: list[float]) -> float:
    return round(statistics.median(values_s) * 1000, 3)
