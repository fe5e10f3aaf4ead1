"""Runs suites of HTTP against our daemons and others, and prints tables in Markdown.

    python -m tests.conformance.http.run [--suite probe|h1spec|interop] [--servers serving,nginx] [--target URL] python
    -m tests.conformance.http.run --suite garden [--count 100000] [--seed 1] [--origins uvicorn,go] [--python PYTHON]

Without ``--servers`` all that are installed are compared, in one run. ``--target`` is a server that runs already, such
as ``http://127.0.0.1:8080``; requests name its host. The app of a target for ``interop`` is
``python -m tests.conformance.grpc.server``. Exit 1 if a case fails on a server of ours, or on the target.
"""

import argparse
import asyncio
import json
import sys
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance.grpc.cases import run_cases as run_grpc_cases
from tests.conformance.http.garden import main as run_garden
from tests.conformance.http.probe import Outcome, read_cases, run_cases
from tests.conformance.http.servers import GRPC_MAKERS, HOST, MAKERS, OURS, Server, is_installed, started

SUITES = ("probe", "h1spec", "interop", "garden")
_REASONS: dict[str, str] = json.loads((Path(__file__).parent / "data" / "reasons.json").read_text())
_WAIT_S = 5.0


def table(results: dict[str, list[Outcome]]) -> Iterator[str]:
    """One row for each server, then the cases that do not pass everywhere."""
    yield "| server | pass | warn | fail | of |"
    yield "|---|---|---|---|---|"
    for name, outcomes in results.items():
        counts = Counter(outcome.verdict for outcome in outcomes)
        yield f"| {name} | {counts['pass']} | {counts['warn']} | {counts['fail']} | {len(outcomes)} |"
    yield ""
    yield "| case | RFC | " + " | ".join(results) + " |"
    yield "|---" * (len(results) + 2) + "|"
    for row in zip(*results.values(), strict=True):
        if any(outcome.verdict != "pass" for outcome in row):
            case = row[0].case
            yield f"| {case.id} | {case.rfc} | " + " | ".join(_cell(outcome) for outcome in row) + " |"


def _cell(outcome: Outcome) -> str:
    if outcome.verdict == "pass":
        return "pass"
    seen = "; ".join(str(answer) for answer in outcome.answers)
    return f"**fail** ({seen})" if outcome.verdict == "fail" else f"warn ({seen})"


def unexplained(outcomes: Sequence[Outcome]) -> list[str]:
    """Failures, and warnings without a reason in ``data/reasons.json``."""
    return [
        f"{outcome.case.id}: {outcome.verdict}: {'; '.join(map(str, outcome.answers))}"
        for outcome in outcomes
        if outcome.verdict == "fail" or (outcome.verdict == "warn" and outcome.case.id not in _REASONS)
    ]


def compare(suite: str, servers: Sequence[Server], host: str) -> dict[str, list[Outcome]]:
    """Run a suite on each server."""
    cases = read_cases(suite)
    return {server.name: run_cases(cases, server.address, host=host, wait_s=_WAIT_S) for server in servers}


def grpc_table(results: dict[str, dict[str, str]]) -> Iterator[str]:
    """One row for each server, then what fails where."""
    yield "| server | pass | fail | of |"
    yield "|---|---|---|---|"
    for name, problems in results.items():
        failed = sum(map(bool, problems.values()))
        yield f"| {name} | {len(problems) - failed} | {failed} | {len(problems)} |"
    yield ""
    for name, problems in results.items():
        yield from (f"- {name}: {case}: {problem}" for case, problem in problems.items() if problem)


def judge_grpc(servers: Sequence[Server], host: str) -> tuple[list[str], set[str]]:
    """Run the cases of gRPC; returns the lines to print, and the names of servers that fail one."""
    results = {server.name: asyncio.run(run_grpc_cases(server.address, host)) for server in servers}
    return list(grpc_table(results)), {name for name, problems in results.items() if any(problems.values())}


def judge_http(suite: str, servers: Sequence[Server], host: str) -> tuple[list[str], set[str]]:
    """Run a suite of HTTP/1.1; returns the same as ``judge_grpc``."""
    results = compare(suite, servers, host)
    failed = {name for name, outcomes in results.items() if any(outcome.verdict == "fail" for outcome in outcomes)}
    return list(table(results)), failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="probe", help="which cases")
    parser.add_argument("--servers", default="", help=f"names, with commas between them: {', '.join(MAKERS)}")
    parser.add_argument("--target", default="", help="the URL of a server that runs already")
    value, rest = parser.parse_known_args(arguments)
    if value.suite == "garden":
        if value.target or value.servers:
            parser.error(
                "--suite garden compares origins behind our own proxies: it takes --origins in place of --servers and --target"
            )
        return run_garden(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    is_grpc = value.suite == "interop"

    def judge(servers: Sequence[Server], host: str) -> set[str]:
        lines, failed = judge_grpc(servers, host) if is_grpc else judge_http(value.suite, servers, host)
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return failed

    if value.target:
        url = urllib.parse.urlsplit(value.target)
        if url.scheme != "http" or not url.hostname:
            parser.error(f"--target {value.target!r} is no URL like http://127.0.0.1:8080")
        return int(bool(judge([Server(name=url.netloc, address=(url.hostname, url.port or 80))], url.netloc)))
    makers = GRPC_MAKERS if is_grpc else MAKERS
    names = value.servers.split(",") if value.servers else [name for name in makers if is_installed(name)]
    if unknown := [name for name in names if name not in makers]:
        parser.error(f"--servers {', '.join(unknown)}: known are {', '.join(makers)}")
    with started(names, grpc=is_grpc) as servers:
        return int(bool(judge(servers, HOST) & set(OURS)))


if __name__ == "__main__":
    sys.exit(main())
