"""Loads user scaling policies: from installed packages, files, and the state folder of a single machine.

A package names its classes in the entry-point group ``serving.policies``. On one machine
``serving deploy --policy FILE.py:Class`` stores a copy of the file in the state folder, and an annotation names the
copy. This gives no new right: the folder's owner may run any code anyway. The code runs in the process that loads it.
``BoundedCalls`` interrupts a call that takes too long.
"""

import hashlib
import importlib.util
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

from serving.core.model.errors import InvalidValue
from serving.core.scaling.decision.guarded import POLICY_TIME_MAX_S, PolicyClass, PolicyOverrun
from serving.core.scaling.decision.policy import Policy
from serving.core.settings.autoscaler import POLICIES, POLICY_NAME
from serving.net.aio.clock import unqueued_s

POLICY_GROUP = "serving.policies"
"""The entry-point group of packages with policies."""

POLICIES_FOLDER = "policies"
"""The folder of policy copies in a state folder."""

T = TypeVar("T")

_FILE_FORM = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_EXPECTED = "FILE.py:Class, a Python file and a class in it with observe(second) and propose(view)"
_DIGEST_LENGTH = 8
# Most characters of a class name in the name of its copy.
_NAME_LENGTH = 40
# Time between two interrupts of one call, in seconds.
_AGAIN_S = 1.0
# Zero would cancel the alarm.
_ALARM_MIN_S = 0.001
_FILE_MAX_BYTES = 1024 * 1024


def installed_policies() -> dict[str, PolicyClass]:
    """The policy classes of installed packages, by name.

    A class that failed to load raises ``InvalidValue`` when it is used.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - it loads a parser of mail, which few processes need

    classes: dict[str, PolicyClass] = {}
    for entry_point in entry_points(group=POLICY_GROUP):
        if entry_point.name in POLICIES or not is_policy_name(entry_point.name):
            continue
        try:
            classes[entry_point.name] = _class_in(entry_point.load(), entry_point.value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - code of a user, which may even exit
            classes[entry_point.name] = _Broken(entry_point.value, error)
    return classes


def policy_names(folder: Path) -> list[str]:
    """The policy names that an annotation may use on this machine: built-in, installed, and copied to ``folder``.

    Loads no class.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - as above

    installed = (entry_point.name for entry_point in entry_points(group=POLICY_GROUP))
    copies = (path.name.partition(".")[0] for path in folder.glob("*.*.py"))
    return [*POLICIES, *sorted({name for name in (*installed, *copies) if is_policy_name(name)} - {*POLICIES})]


def is_policy_file(text: str) -> bool:
    """Whether the text has the form FILE.py:Class."""
    return _FILE_FORM.fullmatch(text) is not None


def is_policy_name(text: str) -> bool:
    """Whether the text may be the name of a policy."""
    try:
        return POLICY_NAME.read(text) == text
    except InvalidValue:
        return False


def load_policy(text: str) -> PolicyClass:
    """Execute the file of ``FILE.py:Class``, and return the class. Raises ``InvalidValue``."""
    form = _FILE_FORM.fullmatch(text)
    if form is None:
        raise InvalidValue(text=text, expected=_EXPECTED)
    return _class_of(Path(form["path"]), form["name"])


class StoredPolicies:
    """Copies of policy files in the state folder. A changed file gets a new name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, text: str) -> str:
        """Copy the file of ``FILE.py:Class``; return the name of the copy. Raises ``InvalidValue`` or ``OSError``."""
        load_policy(text)
        path, _, class_name = text.rpartition(":")
        source = Path(path).read_bytes()
        slug = re.sub(r"[^a-z0-9]+", "-", class_name.lower()).strip("-")[:_NAME_LENGTH] or "policy"
        name = f"{slug}-{hashlib.sha256(source).hexdigest()[:_DIGEST_LENGTH]}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = self._folder / f"{name}.{class_name}.py"
        partial = copy.with_suffix(".new")
        partial.write_bytes(source)
        partial.rename(copy)
        return name

    def find(self, name: str) -> PolicyClass | None:
        """The class of a copy; None if there is no copy. Raises ``InvalidValue``."""
        if not is_policy_name(name):
            return None
        for path in self._folder.glob(f"{name}.*.py"):
            return _class_of(path, path.name.split(".")[1])
        return None


class BoundedCalls:
    """Limits each call to ``bound_s`` seconds of running or blocking; waiting for a core does not count.

    In the main thread a longer call is interrupted. In other threads it is only measured.
    """

    def __init__(self, *, bound_s: float = POLICY_TIME_MAX_S, clock: Callable[[], float] = unqueued_s) -> None:
        self._bound_s = bound_s
        self._clock = clock
        self._began_s = 0.0
        self._is_running = False
        self._is_interrupting = threading.current_thread() is threading.main_thread()
        if self._is_interrupting:
            signal.signal(signal.SIGALRM, self._interrupt)

    def __call__(self, call: Callable[[], T], /) -> T:
        """Return the result of the call. Raises ``PolicyOverrun``."""
        self._began_s = self._clock()
        try:
            try:
                self._is_running = True
                self._set_alarm(self._bound_s)
                result = call()
            finally:
                self._end()
        except PolicyOverrun:
            # An alarm may have interrupted the end of the call too.
            self._end()
            raise
        if self._left_s() < 0:
            raise PolicyOverrun
        return result

    def _end(self) -> None:
        """Cancel the alarm. An alarm that arrives meanwhile raises nothing."""
        self._is_running = False
        self._set_alarm(0.0)

    def _set_alarm(self, after_s: float) -> None:
        if self._is_interrupting:
            # The alarm repeats, because a bare "except" in the call may have swallowed the first.
            signal.setitimer(signal.ITIMER_REAL, after_s, _AGAIN_S if after_s else 0.0)

    def _left_s(self) -> float:
        return self._began_s + self._bound_s - self._clock()

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._is_running:
            return
        left_s = self._left_s()
        if left_s <= 0:
            raise PolicyOverrun
        self._set_alarm(max(left_s, _ALARM_MIN_S))


class _Broken:
    """Represents a class that could not be loaded."""

    def __init__(self, where: str, error: BaseException) -> None:
        self._problem = InvalidValue(text=where, expected=f"loadable: {type(error).__name__}: {error}")

    def __call__(self) -> Policy:
        raise self._problem


def _class_of(path: Path, name: str) -> PolicyClass:
    where = f"{path}:{name}"
    try:
        if path.stat().st_size > _FILE_MAX_BYTES:
            raise InvalidValue(text=where, expected=f"a file of at most {_FILE_MAX_BYTES} bytes")
    except OSError as error:
        raise InvalidValue(text=where, expected=f"readable: {error.strerror}") from error
    module_name = f"serving_policy_{hashlib.sha256(str(path.absolute()).encode()).hexdigest()}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and similar look up their module.
    sys.modules[module_name] = module
    is_without_cache, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InvalidValue(text=where, expected=f"loadable: {type(error).__name__}: {error}") from error
    finally:
        sys.dont_write_bytecode = is_without_cache
    return _class_in(getattr(module, name, None), where)


def _class_in(policy_class: object, where: str) -> PolicyClass:
    """Check that an object is a policy class. Raises ``InvalidValue``."""
    if not callable(policy_class) or not all(
        callable(getattr(policy_class, method, None)) for method in ("observe", "propose")
    ):
        raise InvalidValue(text=where, expected="a class with observe(second) and propose(view)")
    return policy_class
