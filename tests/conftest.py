"""Profiles of hypothesis: HYPOTHESIS_PROFILE=thorough for `make test-all`.

The usual profile draws the same examples each time, so that a run says something about the change and not about the
dice; the thorough one draws anew, and more.
"""

import faulthandler
import gc
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import orphans

if TYPE_CHECKING:
    from tests.e2e.cli_stage import Stage

# A shell starts its background jobs (`make test &`, `nohup make test`) with these ignored; what a test starts would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long anything takes says something of the machine only.
_UNHURRIED = [HealthCheck.too_slow]
settings.register_profile("usual", deadline=None, max_examples=40, derandomize=True, suppress_health_check=_UNHURRIED)
settings.register_profile("thorough", deadline=None, max_examples=1000, suppress_health_check=_UNHURRIED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


_EXIT_S = 120

# Ten thousand tests are a million objects that stay: with Python's own thresholds a third of their collection goes into
# looking for garbage among them.
gc.set_threshold(50_000, 20, 50)


def pytest_sessionstart() -> None:
    """Start what ends the daemons of this process when it is killed."""
    mark = os.environ[orphans.VARIABLE] = uuid.uuid4().hex
    command = [sys.executable, "-SE", str(Path(orphans.__file__)), str(os.getpid()), mark]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=nowhere, setsid=True)


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test run as long as its mark ``timeout`` allows: ``faulthandler_timeout`` would end the whole run before."""
    mark = item.get_closest_marker("timeout")
    if mark and mark.args[0] > float(item.config.getini("faulthandler_timeout")):
        faulthandler.dump_traceback_later(mark.args[0] + _EXIT_S, exit=True, file=2)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once: a run that is cut off has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.stderr.write(f"\n{report.when} of {report.nodeid} failed:\n{report.longreprtext[-2000:]}\n")


def pytest_sessionfinish() -> None:
    """End a worker that does not exit by itself, and print where it waits."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        faulthandler.dump_traceback_later(_EXIT_S, exit=True, file=2)


@pytest.fixture(autouse=True)
def _own_log_handlers() -> Iterator[None]:
    """Restore the root logger: a daemon in this process logs to a stream that closes with the test."""
    before, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = before
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def _system(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Stage"]:
    from tests.e2e.cli_stage import started  # noqa: PLC0415 - most tests need none

    # Named as below a user's XDG_STATE_HOME.
    with started(tmp_path_factory.mktemp("system") / "serving") as stage:
        yield stage


@pytest.fixture(scope="module")
def serving(_system: "Stage") -> Iterator["Stage"]:
    """The system that all tests of this process share; each module gets it without objects of another one."""
    from tests.e2e.cli_stage import clear, patient  # noqa: PLC0415 - as above

    with patient():
        yield _system
        clear(_system)
