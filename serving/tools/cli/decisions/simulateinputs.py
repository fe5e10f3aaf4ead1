"""Inputs of ``serving simulate`` and ``serving tune``: settings, times, policies and a workload."""

import array
import csv
import io
import math
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import yaml

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.knative import SLO_ANNOTATION
from serving.core.model.quantity import Resources, parse_bytes, parse_millicores
from serving.core.model.routepolicy import route_policy
from serving.core.scaling.policies.index import ScalingPolicyView, policy_of
from serving.core.settings.annotations import GROUP, ScalingAnnotations, read_annotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.knob import Value, fields_of
from serving.core.settings.queueproxy import QueueProxySettings
from serving.core.settings.yamltext import JsonTypesLoader
from serving.net.aio.inputfile import open_input, read_input_text
from serving.net.aio.policyclasses import installed_policies, is_policy_file, load_policy
from serving.net.cluster.kinds import SCALING_POLICY
from serving.net.cluster.schedules import schedule_problems
from serving.tools.cli.client.api import adding
from serving.tools.cli.decisions.simulatenodes import node_options, node_plan_of
from serving.tools.cli.decisions.simulatetrace import PolicyRunner
from serving.tools.simulator.curve import POLICIES, SimulatedPolicy, policy_of_user
from serving.tools.simulator.logs import read_logs
from serving.tools.simulator.nodes import NodePlan
from serving.tools.simulator.results import DurationModel, Quantiles
from serving.tools.simulator.signals import PodUse
from serving.tools.simulator.trace import (
    TIME_MAX_S,
    ArrivalPlacement,
    FunctionTrace,
    RecordedFunction,
    TraceWindow,
    arrivals,
    parse_steps,
    read_trace,
)
from serving.tools.simulator.workload_run import Workload

Record = TypeVar("Record", bound=msgspec.Struct)

_DURATION_HEADER = ["function", "mean_s", "p50_s", "p99_s"]
# Default end of a synthetic load, and start time of its pod, in seconds.
_LOAD_UNTIL_S, _LOAD_START = 260.0, "1"
# Default start time of a trace's pod: the time in the published studies.
_TRACE_START = "2"
_DURATION_FORMS = "seconds, MEDIAN:P99 in seconds, or a CSV file: " + ",".join(_DURATION_HEADER)

workload_options = adding(
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        help="Recorded workload: counts per minute, requests, or rates (.csv, .gz, .xz).",
    ),
    click.option(
        "--from-log",
        "from_log",
        type=click.Path(path_type=Path),
        help="Access log of a running system, or folder of its logs, to use as the workload.",
    ),
    click.option(
        "--placement",
        type=click.Choice([placement.value for placement in ArrivalPlacement]),
        default=ArrivalPlacement.UNIFORM.value,
        show_default=True,
        help="Arrival of requests within a minute of the trace: uniformly distributed, or at a fixed phase per function.",
    ),
    click.option(
        "--from",
        "from_s",
        default=0.0,
        show_default=True,
        help="Time in the trace at which the simulation starts, in seconds.",
    ),
    click.option(
        "--until",
        "until_s",
        type=float,
        help="Time at which the simulation ends, in seconds.  [default: 260 with --load, the end of the trace with --trace]",
    ),
    click.option(
        "--service-time",
        default="0.25",
        show_default=True,
        help="Duration of a request: seconds, MEDIAN:P99, or a CSV file (function,mean_s,p50_s,p99_s). Durations in the trace take precedence.",
    ),
    click.option(
        "--start-time",
        help="Time until a new pod is ready, in the formats of --service-time.  [default: 1 with --load, 2 with --trace]",
    ),
    click.option(
        "--failing-starts",
        type=click.FloatRange(0, 0.99),
        default=0.0,
        show_default=True,
        help="Fraction of pod starts that fail.",
    ),
    click.option(
        "--drain-time",
        "drain_s",
        type=click.FloatRange(0, 600),
        default=QueueProxySettings().drain_lag_s,
        show_default=True,
        help="Time that an idle pod needs to stop (drain lag), in seconds. Knative's is 30.",
    ),
    click.option(
        "--burst-switch/--no-burst-switch",
        default=True,
        show_default=True,
        help="Bypass the activator while pods have burst capacity left, as on a cluster. On one machine requests never bypass it.",
    ),
    click.option(
        "--shared-prior/--own-prior",
        default=True,
        show_default=True,
        help="With the adaptive policy: learn from all functions, as a running system does, or from each function alone.",
    ),
    click.option(
        "--node-pods",
        type=click.IntRange(0),
        default=0,
        help="Maximum number of pods on the nodes, over all functions; further pods wait.  [default: no limit]",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        help="Maximum number of concurrent requests per pod; 0 is no limit.",
    ),
    click.option(
        "--scaling-policy",
        type=click.Path(path_type=Path),
        help="ScalingPolicy manifest whose triggers apply to each function.",
    ),
    click.option("--request-cpu", metavar="CPU", help="CPU usage per request in flight, for triggers, such as 50m."),
    click.option(
        "--request-memory", metavar="MEMORY", help="Memory usage per request in flight, for triggers, such as 4Mi."
    ),
    click.option("--slo", metavar="GOAL", help="Latency goal, such as p95<300ms."),
    click.option(
        "--knee",
        type=click.FloatRange(0, min_open=True),
        default=math.inf,
        help="Concurrent requests above which a pod slows down in proportion.  [default: never]",
    ),
    click.option(
        "--annotate",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a scaling annotation of the revision: max-scale=5, window=30s, ...",
    ),
    click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key of config-autoscaler; --set stable-window=30s equals --stable-window 30s.",
    ),
    click.option("--seed", default=1, show_default=True, help="Random seed for arrival times and durations."),
    click.option(
        "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Number of seeds to average over."
    ),
    click.option(
        "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Number of processes.  [default: all cores]"
    ),
    node_options,
)
"""Adds the options to a command."""


def _options_expected() -> str:
    context = click.get_current_context(silent=True)
    return f"options only: see `{context.command_path if context else 'serving simulate'} --help`"


def settings_pairs(words: Sequence[str]) -> list[str]:
    """The settings in the options (``--stable-window 30s`` or ``--stable-window=30s``), as ``key=value``.

    Raises ``SettingsError``.
    """
    pairs, remaining = [], list(words)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--"):
            raise SettingsError.of(word, "an argument without an option", _options_expected())
        key, is_pair, value = word.removeprefix("--").partition("=")
        if not is_pair:
            if not remaining:
                raise SettingsError.of(word, "no value", f"{word} VALUE")
            value = remaining.pop(0)
        pairs.append(f"{key}={value}")
    return pairs


def changed_settings(settings: AutoscalerSettings, pairs: Sequence[str]) -> AutoscalerSettings:
    """The settings after changes in the form ``key=value``, with keys of the ConfigMap. Raises ``SettingsError``."""
    fields = {field.knob.key: field for field in fields_of(AutoscalerSettings)}
    changed, problems = settings, list[Problem]()
    for pair in pairs:
        key, _, text = pair.partition("=")
        field = fields.get(key)
        if field is None:
            problems.append(Problem(where=key, what="no such option or setting", expected="a key of config-autoscaler"))
            continue
        try:
            changed = _with(changed, field.path, field.knob.read(text, plain=False))
        except InvalidValue as error:
            problems.append(Problem(where=key, what=f"{text!r} is not right", expected=error.expected))
    if problems:
        raise SettingsError(problems)
    clashes = [Problem(where="settings", what=problem.what, expected=problem.expected) for problem in changed.check()]
    if clashes:
        raise SettingsError(clashes)
    return changed


def _with(record: Record, path: Sequence[str], value: Value) -> Record:
    name, *below = path
    return msgspec.structs.replace(record, **{name: _with(getattr(record, name), below, value) if below else value})


def read_scaling(pairs: Sequence[str], settings: AutoscalerSettings, *, slo: str | None) -> ScalingAnnotations:
    """Parse annotations of the revision from ``key=value``. Knative's group may be left out of a key.

    Raises ``SettingsError``.
    """
    named = (pair.partition("=") for pair in pairs)
    annotations = {key if "/" in key else GROUP + key: value for key, _, value in named}
    if slo is not None:
        annotations[SLO_ANNOTATION] = slo
    read = read_annotations(annotations, settings)
    if read.problems or read.warnings:
        raise SettingsError([*read.problems, *read.warnings])
    return read.scaling


def known_policies(text: str) -> dict[str, SimulatedPolicy]:
    """The policies in a comma-separated list, by name: built in, from installed packages, or FILE.py:Class.

    Raises ``SettingsError``, and ``InvalidValue`` for a file.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise SettingsError.of("--compare", "no policy", _policies_expected())
    return {name: _known_policy(name) for name in names}


def _known_policy(name: str) -> SimulatedPolicy:
    if name in POLICIES:
        return POLICIES[name]
    if is_policy_file(name):
        return policy_of_user(name.rpartition(":")[2], load_policy(name))
    policy_class = installed_policies().get(name)
    if policy_class is None:
        raise SettingsError.of("policy", f"{name!r} is not a policy", _policies_expected())
    return policy_of_user(name, policy_class)


def _policies_expected() -> str:
    return f"some of {', '.join(POLICIES)}, an installed policy, or FILE.py:Class"


def deciding_policy(text: str) -> SimulatedPolicy:
    """The named policy, which must not know the future. Raises ``SettingsError``."""
    policies = known_policies(text)
    if len(policies) > 1:
        raise SettingsError.of("--policy", f"{text!r} is more than one policy", "one, or several in --compare")
    ((name, policy),) = policies.items()
    if policy.foresight is not None:
        deciding = [known for known, simulated in POLICIES.items() if simulated.foresight is None]
        raise SettingsError.of(
            "--policy", f"{name} knows all future requests, and has no settings", "one of " + ", ".join(deciding)
        )
    return policy


def read_durations(text: str, option: str) -> DurationModel:
    """Parse seconds, a median and 99th percentile, or a CSV file with both per function. Raises ``SettingsError``."""
    numbers = _quantiles(text.split(":"))
    if numbers is not None:
        return DurationModel(default=numbers)
    path = Path(text)
    if not path.is_file():
        raise SettingsError.of(option, f"{text!r} is neither a time nor a file", _DURATION_FORMS)
    return _read_quantiles(path, option)


def runner_of(
    options: Mapping[str, Any], *, settings: AutoscalerSettings, policies: Mapping[str, SimulatedPolicy]
) -> PolicyRunner:
    """The workload, the seeds and the number of processes in the options, as a runner. Raises ``SettingsError``."""
    sources = [options[name] for name in ("trace", "from_log") if options[name] is not None]
    if len(sources) > 1 or (not sources and options.get("load") is None):
        raise SettingsError.of("--trace", "one workload is needed", "--trace FILE or --from-log PATH")
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    return PolicyRunner(workload=_workload(options, settings), seeds=seeds, jobs=options["jobs"], policies=policies)


def _workload(options: Mapping[str, Any], settings: AutoscalerSettings) -> Workload:
    until_s = math.inf if options["until_s"] is None else options["until_s"]
    if options["until_s"] is not None and not 0 < until_s <= TIME_MAX_S:
        raise SettingsError.of("--until", f"{until_s:g} is not right", f"seconds above 0 and up to {TIME_MAX_S:g}")
    if not 0 <= options["from_s"] < until_s:
        raise SettingsError.of("--from", f"{options['from_s']:g} is not right", "0 or more, and less than --until")
    window = TraceWindow(from_s=options["from_s"], until_s=until_s)
    service = read_durations(options["service_time"], "--service-time")
    is_made_up = options["trace"] is None and options["from_log"] is None
    start = read_durations(options["start_time"] or (_LOAD_START if is_made_up else _TRACE_START), "--start-time")
    functions: list[FunctionTrace]
    if options["from_log"] is not None:
        logs = read_logs(options["from_log"], window=window)
        functions, length_s, service = logs.functions, logs.length_s, logs.service
        if logs.start is not None and not options["start_time"]:
            start = DurationModel(default=logs.start)
    elif is_made_up:
        length_s = _LOAD_UNTIL_S if options["until_s"] is None else until_s
        dice = random.Random(options["seed"])  # noqa: S311 - made-up load
        arrivals_s = array.array("d", arrivals(parse_steps(options["load"]), length_s, dice))
        unknown_s = array.array("d", [math.nan] * len(arrivals_s))
        functions = [RecordedFunction(name="load", arrivals_s=arrivals_s, durations_s=unknown_s)]
    else:
        placement = ArrivalPlacement(options["placement"])
        functions, length_s = read_trace(options["trace"], placement=placement, window=window)
    if not is_made_up and not any(function.request_count for function in functions):
        raise SettingsError.of("--from", "this part of the trace has no request", "a part with requests")
    concurrency = options["concurrency"]
    affinity = route_policy(dict(pair.partition("=")[::2] for pair in options["annotate"])).affinity
    return Workload(
        has_prefix_affinity=affinity is not None and affinity.by_prefix,
        functions=functions,
        length_s=length_s,
        settings=settings,
        scaling=read_scaling(options["annotate"], settings, slo=options["slo"]),
        scaling_policy=_scaling_policy(options["scaling_policy"]),
        use=_use(options),
        knee=options["knee"],
        queue_proxy=msgspec.structs.replace(
            QueueProxySettings(), container_concurrency=concurrency, drain_lag_s=options["drain_s"]
        ),
        service=service,
        start=start,
        concurrency=concurrency,
        failing_starts=options["failing_starts"],
        has_burst_switch=options["burst_switch"],
        pods_max=options["node_pods"],
        shares_prior=options["shared_prior"],
        nodes=_nodes(options),
        pod_bytes=parse_bytes(options["pod_memory"]),
    )


def _scaling_policy(path: Path | None) -> ScalingPolicyView | None:
    if path is None:
        return None
    expected = "the manifest of one ScalingPolicy"
    try:
        manifest = yaml.load(read_input_text(path), JsonTypesLoader)  # noqa: S506 - a safe one
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError.of("--scaling-policy", f"{path}: {error}", expected) from error
    if not isinstance(manifest, dict) or manifest.get("kind") != SCALING_POLICY.name:
        raise SettingsError.of("--scaling-policy", f"{path} has another kind", expected)
    policy = policy_of({"metadata": {"name": "load"}, **manifest}, schedule_problems)
    if policy is None or policy.spec is None:
        raise SettingsError.of(
            "--scaling-policy", f"{path}: {policy.problem if policy else 'it is being deleted'}", expected
        )
    return policy


def _use(options: Mapping[str, Any]) -> PodUse:
    cpu, memory = options["request_cpu"], options["request_memory"]
    return PodUse(
        requested=Resources(
            cpu_m=parse_millicores(options["pod_cpu"]), memory_bytes=parse_bytes(options["pod_memory"])
        ),
        per_request=Resources(
            cpu_m=None if cpu is None else parse_millicores(cpu),
            memory_bytes=None if memory is None else parse_bytes(memory),
        ),
    )


def _nodes(options: Mapping[str, Any]) -> NodePlan | None:
    plan = node_plan_of(options)
    if plan is not None and options["node_pods"]:
        raise SettingsError.of("--node-pods", "there are --nodes too", "one of them")
    return plan


def _read_quantiles(path: Path, option: str) -> DurationModel:
    try:
        with io.TextIOWrapper(open_input(path), encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError.of(option, f"{path}: {error}", _DURATION_FORMS) from error
    if not rows or rows[0] != _DURATION_HEADER:
        raise SettingsError.of(
            f"{path}:1", f"{','.join(rows[0] if rows else [])!r} is not right", ",".join(_DURATION_HEADER)
        )
    by_function: dict[str, Quantiles] = {}
    for line, row in enumerate(rows[1:], start=2):
        quantiles = _quantiles(row[2:]) if len(row) == len(_DURATION_HEADER) else None
        if quantiles is None:
            raise SettingsError.of(
                f"{path}:{line}", f"{','.join(row)!r} is not right", "a function and three times above 0 in seconds"
            )
        by_function[row[0]] = quantiles
    if not by_function:
        raise SettingsError.of(str(path), "no function", "a row for each function")
    # A function without a row gets the median of the rows.
    medians = sorted(by_function.values(), key=lambda quantiles: quantiles.p50_s)
    return DurationModel(default=medians[len(medians) // 2], by_function=by_function)


def _quantiles(words: Sequence[str]) -> Quantiles | None:
    """A median, and a 99th percentile of at least the median; None if they are invalid."""
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return None
    if not 1 <= len(numbers) <= 2 or not all(0 < number < math.inf for number in numbers):
        return None
    return Quantiles(p50_s=numbers[0], p99_s=max(numbers))
