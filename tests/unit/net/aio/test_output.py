import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.net.aio.output import write_error, write_output

_PROGRAM = "from serving.net.aio.output import write_error, write_output; write_error('a'); write_output('b'); write_error('c')"


def test_lines_are_written_to_standard_error_and_output(capfd: pytest.CaptureFixture[str]) -> None:
    write_error("an error")
    write_output("ready")
    assert capfd.readouterr() == ("ready\n", "an error\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the kernel has it")
def test_output_to_full_disk_does_not_fail_the_process() -> None:
    with open("/dev/full", "ab") as full:  # noqa: PTH123 - as a shell opens it
        assert subprocess.run([sys.executable, "-c", _PROGRAM], stdout=full, stderr=full, check=False).returncode == 0


def test_output_to_closed_pipe_does_not_fail_the_process() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", _PROGRAM], stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert done.returncode == 0
