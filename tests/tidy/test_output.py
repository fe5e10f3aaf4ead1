"""Daemons write lines by ``serving.net.aio.output``, or by logging: neither ends a process on a full disk."""

import re

from tests.tidy.sources import ROOT

# Commands, whose caller sees the error; an app's own process; and what runs without this package.
EXEMPT = (
    "tools/cli/",
    "tools/samples/",
    "tools/simulator/",
    "asgi.py",
    "net/aio/output.py",
    "net/proxy/forwarding/accesslog.py",
    "home/processes/preload_program.py",
    "home/processes/confine.py",
)
WRITES = re.compile(r"sys\.std(?:err|out)\.write|os\.write\([12],|\bprint\(")


def test_daemons_do_not_write_directly_to_standard_streams() -> None:
    results = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "serving").rglob("*.py"))
        if not str(path.relative_to(ROOT / "serving")).startswith(EXEMPT)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WRITES.search(line)
    ]
    assert results == []
