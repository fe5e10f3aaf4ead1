"""The plan of an arena: policies, workloads, seeds, and the pinned versions.

A plan is a YAML file. ``serving arena`` writes a plan beside its page, with the versions and the digests of files, so
that a second run gives an identical page, or an error that names the difference.
"""

import hashlib
import math
import platform
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import yaml

import serving
from serving.core.model.errors import Problem, SettingsError
from serving.core.model.slo import read_slo
from serving.core.settings.queueproxy import QueueProxySettings
from serving.core.settings.yamltext import JsonTypesLoader
from serving.net.aio.inputfile import open_input, read_input_text
from serving.net.aio.policyclasses import POLICY_GROUP, is_policy_file
from serving.tools.simulator.results import DurationModel, Quantiles
from serving.tools.simulator.shapes import Shape, shaped
from serving.tools.simulator.trace import TIME_MAX_S, ArrivalPlacement, FunctionTrace, TraceWindow, read_trace
from serving.tools.simulator.workload_run import Workload

Time = Annotated[float, msgspec.Meta(ge=0, le=TIME_MAX_S)]
SomeTime = Annotated[float, msgspec.Meta(gt=0, le=TIME_MAX_S)]

# The source files that determine a result, below the package.
_CODE = ("core", "tools/simulator")


class ArenaWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A workload: a part of a trace, or a synthetic shape, with the durations of requests and pod starts in seconds.

    It runs once for each start time of a pod in ``starts_s`` and each concurrency limit in ``limits``. ``sample`` is
    the number of functions of the trace, None for all. ``slo`` is a latency goal that is only measured.
    """

    name: str
    trace: str = ""
    """File of the trace; a relative path is below the folder of traces."""

    shape: Shape | None = None
    """Name of a shape, in place of a trace."""

    from_s: Time = 0.0
    until_s: SomeTime | None = None
    """End of the part; None: the end of the trace."""

    sample: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Number of functions, selected by a hash of their names; None: all functions."""

    placement: ArrivalPlacement = ArrivalPlacement.UNIFORM
    service_s: SomeTime = 0.25
    starts_s: Annotated[tuple[SomeTime, ...], msgspec.Meta(min_length=1)] = (2.0,)
    """Start times of a pod. Each runs with each limit."""

    slo: str = ""
    """A latency goal, such as p95-wait<1s, for the reported share of requests within it. Policies do not use it."""

    limits: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)] = (10,)
    """Concurrent requests per pod; 0 is no limit."""


class ArenaPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs of a comparison by ``serving arena``. The first policy is the baseline.

    Each policy runs on each workload, once with each of the ``seeds`` 1, 2 and so on. The policy ``equal_pod_seconds``
    is also compared with each other policy at equal pod-seconds; "" for none. ``pins`` are versions and digests that a
    run must have.
    """

    policies: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("knative", "adaptive", "fixed-600s")
    """Names or FILE.py:Class. The first policy is the baseline of the comparison."""

    workloads: Annotated[tuple[ArenaWorkload, ...], msgspec.Meta(min_length=1)] = tuple(
        ArenaWorkload(name=shape.value, shape=shape) for shape in Shape
    )
    seeds: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    """Number of runs of each policy on each workload, with the seeds from 1 on."""

    equal_pod_seconds: str = ""
    """Name of a policy that also runs at the pod-seconds of each other policy, by its dial; "": none."""

    pins: Mapping[str, str] = {}
    """Versions and digests that a run must have; a plan without pins is not checked."""


def read_plan(path: Path) -> ArenaPlan:
    """Read the plan from a file. Raises ``SettingsError``."""
    try:
        plan = msgspec.convert(yaml.load(read_input_text(path), JsonTypesLoader), ArenaPlan)  # noqa: S506 - a safe one
    except OSError as error:
        raise SettingsError.of(str(path), error.strerror or str(error), "a file that can be read") from error
    except (yaml.YAMLError, RecursionError, msgspec.ValidationError) as error:
        raise SettingsError.of(str(path), str(error), "a plan, as docs/arena.md has it") from error
    names = [workload.name for workload in plan.workloads]
    for workload in plan.workloads:
        where = f"{path}: workload {workload.name}"
        if names.count(workload.name) > 1:
            raise SettingsError.of(where, "it is there twice", "another name")
        if bool(workload.trace) == (workload.shape is not None):
            raise SettingsError.of(where, "one source of requests is needed", "trace: FILE or shape: NAME")
        if workload.shape is not None and workload.from_s:
            raise SettingsError.of(where, "from_s is for a trace", "a shape from its start")
        if workload.until_s is not None and workload.from_s >= workload.until_s:
            raise SettingsError.of(where, "from_s is not before until_s", "a part of the trace")
    return plan


def plan_text(plan: ArenaPlan) -> str:
    """A plan as YAML."""
    return yaml.safe_dump(msgspec.to_builtins(plan), sort_keys=False, allow_unicode=True)


def workloads_of(workload: ArenaWorkload, traces: Path) -> Iterator[tuple[float, int, Workload]]:
    """Yield each pod start time (seconds) and concurrency limit, with the workload. Raises ``ServingError``."""
    until_s = math.inf if workload.until_s is None else workload.until_s
    functions: Sequence[FunctionTrace]
    if workload.shape is None:
        functions, length_s = read_trace(
            traces / workload.trace,
            placement=workload.placement,
            window=TraceWindow(from_s=workload.from_s, until_s=until_s),
        )
    else:
        functions, length_s = shaped(workload.shape)
        length_s = min(length_s, until_s)
    if workload.sample is not None:
        functions = sorted(functions, key=lambda function: zlib.crc32(function.name[::-1].encode()))[: workload.sample]
    functions = [function for function in functions if function.request_count]
    if not functions:
        raise SettingsError.of(f"workload {workload.name}", "this part has no request", "a part with requests")
    slo = read_slo(workload.slo) if workload.slo else None
    for start_s in workload.starts_s:
        for limit in workload.limits:
            yield (
                start_s,
                limit,
                Workload(
                    functions=functions,
                    length_s=length_s,
                    service=_constant(workload.service_s),
                    start=_constant(start_s),
                    queue_proxy=QueueProxySettings(container_concurrency=limit),
                    concurrency=limit,
                    slo=slo,
                ),
            )


def pins_of(plan: ArenaPlan, traces: Path) -> dict[str, str]:
    """The versions and digests of everything that determines a plan's results. Raises ``SettingsError``."""
    package = Path(serving.__file__).parent
    code = hashlib.sha256()
    for path in sorted(path for folder in _CODE for path in (package / folder).rglob("*.py")):
        code.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    pins = {
        "serving": f"{serving.__version__} {code.hexdigest()[:16]}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for workload in plan.workloads:
        if workload.trace:
            pins[f"trace {workload.trace}"] = _digest(traces / workload.trace)
    for name in plan.policies:
        if is_policy_file(name):
            pins[f"policy {name}"] = _digest(Path(name.rpartition(":")[0]))
    for entry_point in entry_points(group=POLICY_GROUP):
        if entry_point.name in plan.policies and entry_point.dist is not None:
            pins[f"policy {entry_point.name}"] = f"{entry_point.dist.name} {entry_point.dist.version}"
    return pins


def check_pins(plan: ArenaPlan, pins: Mapping[str, str]) -> None:
    """Raise ``SettingsError`` unless all pins of the plan equal this run's pins."""
    problems = [
        Problem(where=f"pins: {name}", what=f"{pins.get(name, 'nothing')} here", expected=pin)
        for name, pin in plan.pins.items()
        if pins.get(name) != pin
    ]
    if problems:
        raise SettingsError(problems)


def _constant(time_s: float) -> DurationModel:
    return DurationModel(default=Quantiles(p50_s=time_s, p99_s=time_s))


def _digest(path: Path) -> str:
    try:
        with open_input(path) as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise SettingsError.of(str(path), error.strerror or str(error), "a file that can be read") from error
