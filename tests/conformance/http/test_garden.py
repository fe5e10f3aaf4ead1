"""A short differential test: origins interpret forwarded requests as intended.

Takes about 10 s, because origins are started.
"""

import asyncio
import random
import sys

import pytest

from tests.conformance.http.garden import ORIGINS, Forwarded, available, drawn_request, go_toolchain, grow, judge
from tests.conformance.http.run import main as run


@pytest.mark.slow
async def test_origins_interpret_forwarded_requests_as_intended() -> None:
    origins = available(ORIGINS, sys.executable)
    assert {"uvicorn", "h11", "aiohttp"} <= set(origins)
    head, *lines = await grow(count=600, seed=7, origins=origins, python=sys.executable)
    assert head.endswith("h11 refuses 0")
    rows = [line.split("|") for line in lines if line.startswith("| ") and "origin" not in line]
    assert {row[1].strip(): row[2].strip() for row in rows} == dict.fromkeys(origins, "0"), lines


@pytest.mark.slow
@pytest.mark.skipif(go_toolchain() is None, reason="needs Go, which `make bench` installs")
def test_go_origin_interprets_forwarded_requests_as_intended(capsys: pytest.CaptureFixture[str]) -> None:
    """Takes about 4 s, and a minute with an empty Go build cache."""
    assert run(["--suite", "garden", "--count", "20", "--seed", "5", "--origins", "go"]) == 0
    assert "| go | 0 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--target", "http://127.0.0.1:1"], "it takes --origins in place of --servers and --target"),
        (["--origins", "go,cobol"], "--origins cobol: known are uvicorn, h11"),
        (["--number", "3"], "unrecognized arguments: --number 3"),
    ],
)
def test_invalid_garden_options_are_reported(
    options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["--suite", "garden", *options])
    assert error in capsys.readouterr().err


def test_generated_requests_of_a_seed_are_equal() -> None:
    first, second = (random.Random(3) for _ in range(2))
    assert [drawn_request(first) for _ in range(20)] == [drawn_request(second) for _ in range(20)]


async def test_origin_with_another_message_boundary_is_detected() -> None:
    async def lenient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        echo = b'["GET", "/", ""]'.hex().encode()
        writer.write(b"HTTP/1.1 200 OK\r\nX-Echo: %b\r\nContent-Length: 0\r\n\r\n" % echo * 3)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(lenient, "127.0.0.1", 0)
    wire = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    request = Forwarded(wire=wire, read=("GET", "/", ""))
    disagreements, refused_count = await judge("lenient", server.sockets[0].getsockname(), [request])
    assert [disagreement.wire for disagreement in disagreements] == [wire]
    assert refused_count == 0
    server.close()
