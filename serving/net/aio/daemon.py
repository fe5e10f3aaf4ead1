"""Shared setup of all daemons: event loop, signals, logs, garbage collection, and inherited sockets.

``run_daemon`` runs one coroutine on uvloop and gives it a stop event. SIGTERM or SIGINT sets it; a second one cancels.
Log lines are JSON, one object a line, on standard error.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine

import msgspec
import uvloop

from serving.core.model.errors import JournalDamaged, ServingError, SettingsError
from serving.core.model.launch import USAGE_EXIT
from serving.net.aio.clock import stamp
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import supervise, task_of

LISTEN_FDS_VARIABLE = "SERVING_LISTEN_FDS"
_RECORD_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# A name, because a queue-proxy starts without aiohttp.
_HTTP_ERRORS = "aiohttp.http_exceptions"

Body = Callable[[asyncio.Event], Coroutine[object, object, None]]

# Thresholds of the three generations: a full collection needs 600 million new objects, more than any day creates.
# Measured with 2,000 revisions: the younger generations take at most 5 and 8 ms of CPU, 6 % in total. Older cycles stay
# until then: after 1,000 connections of pods, and 1,000 requests and 200 watches of an API server, a full collection
# found 4 objects.
_THRESHOLDS = (300, 1, 1_000_000)


def run_daemon(name: str, body: Body) -> int:
    """Run a daemon until it ends or is stopped; return its exit code.

    0: the daemon was stopped, or ended by itself. 1: the daemon failed; the reason is logged. 2: the daemon fails at
    each start until its configuration changes.
    """
    log_as_json(name)
    try:
        uvloop.run(_until_stopped(body))
    except asyncio.CancelledError:
        return 0
    except ServingError as error:
        extra = {"error": str(error), "task": task_of(error)}
        logging.getLogger(name).error("daemon.failed", extra=extra)  # noqa: TRY400 - the text says it all
        return USAGE_EXIT if isinstance(error, JournalDamaged | SettingsError) else 1
    except Exception as error:
        extra = {"error": f"{type(error).__name__}: {error}", "task": task_of(error)}
        logging.getLogger(name).exception("daemon.failed", extra=extra)
        return 1
    return 0


async def _until_stopped(body: Body) -> None:
    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    from serving.net.aio.startup import READY_VARIABLE  # noqa: PLC0415 - a queue-proxy starts without it

    async with supervise() as tasks:
        tasks.keep_running(_truncate_log, name="own log")
        # Before the body reports that it serves, which removes the variable.
        if READY_VARIABLE in os.environ:
            tasks.keep_running(_report_alive, name="heartbeat")
        await body(stop)


async def _report_alive() -> None:
    """Report to the supervisor that the event loop runs, also while the daemon shuts down."""
    from serving.net.aio.startup import ALIVE_S, report_alive  # noqa: PLC0415 - as above

    while True:
        await next_beat(ALIVE_S)
        report_alive()


async def _truncate_log() -> None:
    from serving.net.aio.startup import LOG_FILE_VARIABLE  # noqa: PLC0415 - a queue-proxy has no use for it

    if LOG_FILE_VARIABLE not in os.environ:
        return
    from serving.net.aio.ownlog import CHECK_S, OwnLog  # noqa: PLC0415 - where there is a file only

    log = OwnLog.of(os.environ)
    while log.is_ours:
        log.check()
        await next_beat(CHECK_S)


def inherited_sockets() -> dict[str, socket.socket]:
    """The listening sockets bound by the supervisor, by name; empty for a daemon started by hand."""
    text = os.environ.get(LISTEN_FDS_VARIABLE, "{}")
    descriptors = msgspec.json.decode(text, type=dict[str, int])
    sockets = {name: socket.socket(fileno=descriptor) for name, descriptor in descriptors.items()}
    for sock in sockets.values():
        sock.setblocking(False)
        sock.set_inheritable(False)
    return sockets


class _JsonLines(logging.Formatter):
    """A log formatter: one JSON object per line with time, level, logger, event, and the fields in ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update({key: value for key, value in vars(record).items() if key not in _RECORD_KEYS})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _is_about_this_daemon(record: logging.LogRecord) -> bool:
    """Whether a record does not merely report invalid HTTP of a client, such as a port scanner, which gets status 400."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__module__ != _HTTP_ERRORS


def log_as_json(name: str) -> None:
    """Send all logs of this process to standard error as JSON lines that include the daemon's name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    handler.addFilter(_is_about_this_daemon)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger(name).setLevel(logging.INFO)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit: the soft limit is usually 1,024, fewer than the connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_rarely() -> None:
    """Let the garbage collector skip all existing objects, and collect later ones rarely.

    Requests create few reference cycles.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)


def collect_in_small_steps() -> None:
    """Let the garbage collector skip all existing objects, and collect later ones in steps of a few milliseconds."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
