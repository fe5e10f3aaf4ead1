"""Load from wrk: HTTP/1.1 on kept connections, with heads of 12 lines as a browser sends them."""

import re
import subprocess
from pathlib import Path

import msgspec

from bench.parts.processes import cpu_s
from bench.peers.cast import LOAD_CORE, Cast

HEADERS = (
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
_VARIED = Path(__file__).with_name("varied.lua")
_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What wrk saw in one round, and the CPU time of its proxy for a request."""

    per_second: float
    p50_ms: float
    p99_ms: float
    error_count: int
    count: int
    cpu_us: float = 0.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How wrk asks. ``is_varied``: path, trace and request id are others in each request."""

    connections: int
    seconds: float
    core: int = LOAD_CORE
    path: str = "/"
    headers: tuple[str, ...] = HEADERS
    is_varied: bool = False

    def run(self, port: int) -> Run:
        """One run of wrk."""
        command = ["taskset", "-c", str(self.core), "wrk", "-t1", f"-c{self.connections}", f"-d{self.seconds:.0f}s"]
        for header in self.headers:
            command += ["-H", header]
        if self.is_varied:
            command += ["-s", str(_VARIED)]
        url = f"http://127.0.0.1:{port}{self.path}"
        return parsed(subprocess.run([*command, "--latency", url], check=True, capture_output=True, text=True).stdout)

    def measured(self, cast: Cast, name: str) -> Run:
        """One round of one player, with its CPU time for a request."""
        before_s = cpu_s(cast.pid(name))
        run = self.run(cast.ports[name])
        spent_s = cpu_s(cast.pid(name)) - before_s
        return msgspec.structs.replace(run, cpu_us=spent_s * 1e6 / max(1, run.count))


def parsed(printed: str) -> Run:
    """What wrk has printed."""
    errors = [int(count) for count in re.findall(r"(?:responses|connect|read|write|timeout):? (\d+)", printed)]
    return Run(
        per_second=float(_found(r"Requests/sec:\s+([\d.]+)", printed)),
        p50_ms=_ms(_found(r"\n +50% +(\S+)", printed)),
        p99_ms=_ms(_found(r"\n +99% +(\S+)", printed)),
        error_count=sum(errors),
        count=int(_found(r"(\d+) requests in", printed)),
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"wrk said something unexpected:\n{text}")
    return match[1]


def _ms(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS_MS[unit]
