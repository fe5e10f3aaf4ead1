"""Child processes of ``serving up``: sockets, environment, readiness, hangs and the terminal."""

import contextlib
import fcntl
import os
import platform
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from serving.home.supervisor.children import ALLOCATOR, CHILDREN, ChildProcess, last_error
from serving.net.aio.startup import ALIVE, WAITING

# Allocations of a read by the event loop: the data, the body in it, and the body behind a head.
PIECES = """
import resource
def read():
    data = bytes(256000)
    body = data[200:]
    return len(b"POST" + body)
read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PROGRAM = """
import signal, sys
from serving.home.supervisor.children import ControllingTerminal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
terminal = ControllingTerminal()
print(terminal.is_lost, flush=True)
signal.sigwait([signal.SIGHUP])
print(terminal.is_lost, terminal.is_hangup_ignored, flush=True)
"""


def test_activators_share_sockets_except_metrics() -> None:
    first, second = (child for child in CHILDREN(2) if child.module == "serving.activator.main")
    assert (first.name, second.name) == ("activator", "activator-1")
    assert first.sockets == ("public", "tls", "inner", "activator-metrics")
    assert second.sockets == ("public", "tls", "inner", "activator-1-metrics")


def test_activator_environment_has_index_and_name() -> None:
    first, second = (child.environment for child in CHILDREN(2) if child.module == "serving.activator.main")
    same = {**ALLOCATOR, "SERVING_ACTIVATOR_COUNT": "2", "SERVING_ACTIVATOR_PROBE_UNREADY_PODS": "false"}
    assert first == {"SERVING_ACTIVATOR_INDEX": "0", **same}
    assert second == {"SERVING_ACTIVATOR_INDEX": "1", "SERVING_ACTIVATOR_NAME": "activator-1", **same}


def test_allocator_settings_apply_to_template_and_activators_only() -> None:
    keeping = {child.name for child in CHILDREN(2) if child.environment.items() >= ALLOCATOR.items()}
    assert keeping == {"template", "activator", "activator-1"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of glibc")
def test_allocator_settings_avoid_page_faults_of_large_reads() -> None:
    faults = [
        int(subprocess.run([sys.executable, "-c", PIECES], env=more, check=True, capture_output=True, text=True).stdout)
        for more in ({}, dict(ALLOCATOR))
    ]
    assert faults[0] > 10 * faults[1]
    assert faults[1] < 300


def test_default_is_a_single_activator() -> None:
    assert [child.name for child in CHILDREN()][-1] == "activator"


def test_replacement_activator_has_a_generation_name() -> None:
    children = CHILDREN()
    for child in children:
        child.generation = 2
    names = [child.environment.get("SERVING_ACTIVATOR_NAME") for child in children]
    assert names == [None, None, None, None, "activator.2"]


def test_process_remains_ready_after_its_report() -> None:
    ready_fd, its_fd = os.pipe2(os.O_NONBLOCK)
    process = ChildProcess(1, started_s=0.0, ready_fd=ready_fd)
    seen = [process.is_ready]
    os.write(its_fd, b"1")
    os.close(its_fd)
    seen += [process.is_ready, process.is_ready]
    assert seen == [False, True, True]


def test_process_that_exits_without_report_is_not_ready() -> None:
    ready_fd, its_fd = os.pipe2(os.O_NONBLOCK)
    process = ChildProcess(1, started_s=0.0, ready_fd=ready_fd)
    os.close(its_fd)
    assert not process.is_ready


def test_process_hangs_after_five_seconds_without_reports() -> None:
    with subprocess.Popen(["sleep", "600"]) as silent, contextlib.ExitStack() as stack:
        stack.callback(silent.kill)
        silent.send_signal(signal.SIGSTOP)
        os.waitpid(silent.pid, os.WUNTRACED)
        ready_fd, its_fd = os.pipe2(os.O_NONBLOCK)
        process = ChildProcess(silent.pid, started_s=0.0, ready_fd=ready_fd)
        # Before the first report, a start may take any time.
        assert [process.hang(1.0) for _ in range(10)] == [""] * 10
        for _ in range(10):
            os.write(its_fd, ALIVE)
            assert process.hang(1.0) == ""
        assert [bool(process.hang(1.0)) for _ in range(5)] == [False] * 4 + [True]
        os.write(its_fd, ALIVE + WAITING)
        assert [process.hang(1.0) for _ in range(10)] == [""] * 10
    os.close(its_fd)
    process.close()


def take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.skipif(not Path("/dev/pts/ptmx").exists(), reason="no pseudo-terminals here: a root without /dev/pts")
def test_closed_terminal_is_detected_as_lost() -> None:
    ours, its = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=its,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=take_terminal,  # noqa: PLW1509 - system calls only
    ) as process:
        os.close(its)
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        os.close(ours)
        assert process.stdout.readline() == "True False\n"


def test_hangup_signal_without_terminal_is_no_loss() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        process.send_signal(1)
        assert process.stdout.readline() == "False False\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('plain\n{"error": "broken", "traceback": "Traceback"}\n', "broken"),
        ("serving needs Python 3.11\n", "serving needs Python 3.11"),
        ('{"event": "daemon.failed", "traceb', "see LOG"),
        ("", "see LOG"),
    ],
)
def test_last_error_is_read_from_the_log(tmp_path: Path, text: str, expected: str) -> None:
    log = tmp_path / "control.log"
    log.write_text(text)
    assert last_error(log) == expected.replace("LOG", str(log))
