"""Whether the terminal of a process is gone."""

import fcntl
import os
import subprocess
import sys
import termios

PROGRAM = """
import signal, sys
from serving.home.supervisor.terminal import ControllingTerminal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
terminal = ControllingTerminal()
print(terminal.is_lost, flush=True)
signal.sigwait([signal.SIGHUP])
print(terminal.is_lost, terminal.is_hangup_ignored, flush=True)
"""


def take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_terminal_that_is_closed_is_lost() -> None:
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


def test_a_signal_that_was_sent_by_hand_is_no_loss() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        process.send_signal(1)
        assert process.stdout.readline() == "False False\n"
