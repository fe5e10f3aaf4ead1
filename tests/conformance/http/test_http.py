"""The published HTTP/1.1 cases against the real daemons: none fails, and each warning has a reason.

Takes about 8 s: the daemons are separate processes, and cases that expect silence wait for it.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.http.probe import Case, payload, read_cases, run_cases, verdict
from tests.conformance.http.raw import parsed
from tests.conformance.http.run import main, unexplained
from tests.conformance.http.servers import HOST, OURS, Server, started

# Reached only by a server that hangs.
WAIT_S = 60.0


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    with started(list(OURS)) as running:
        yield {server.name: server for server in running}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("suite", "count"), [("probe", 215), ("h1spec", 33)])
def test_every_http_case_passes_and_each_warning_has_a_reason(
    servers: dict[str, Server], name: str, suite: str, count: int
) -> None:
    cases = read_cases(suite)
    assert len({case.id for case in cases}) == count
    outcomes = run_cases(cases, servers[name].address, host=HOST, wait_s=WAIT_S)
    assert unexplained(outcomes) == []


def test_target_option_runs_the_h1spec_suite(servers: dict[str, Server], capsys: pytest.CaptureFixture[str]) -> None:
    host, port = servers["queue-proxy"].address
    assert main(["--suite", "h1spec", "--target", f"http://{host}:{port}"]) == 0
    assert f"| {host}:{port} | 33 | 0 | 0 | 33 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--target", "localhost"])


def test_verdicts_are_matched_in_order_and_default_to_fail() -> None:
    case = Case(id="x", send=["a", "b"], fail=["answers:2"], passes=["400", "2xx 2:unsent"], warn=["2xx closed"])
    ok = parsed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", closed=False)
    gone = parsed(b"", closed=True)
    assert verdict(case, [ok, gone]) == "fail"
    assert verdict(case, [parsed(ok.raw, closed=True), gone]) == "warn"
    assert verdict(case, [parsed(ok.raw + ok.raw, closed=True), gone]) == "fail"
    assert verdict(case, [parsed(b"HTTP/1.1 400 Bad\r\n\r\n", closed=False), gone]) == "pass"


def test_payload_expands_repeats_chunks_and_length() -> None:
    text = "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n{X-#: y\r\n*2}\r\n{chunk}abc{/chunk}"
    assert (
        payload(text, "h", {})
        == b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\nX-0: y\r\nX-1: y\r\n\r\n3\r\nabc\r\n"
    )
