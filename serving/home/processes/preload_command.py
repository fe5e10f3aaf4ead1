"""Which commands a preloaded process can run, as a decision: those that a Python interpreter runs.

Input: the arguments of an order, and a look at files. Output: the interpreter with a script or ``-m MODULE`` and its arguments. A
console script, such as ``uvicorn``, names its interpreter in its first line. ``sh -c "exec ... $PORT"``, which a command with a
variable becomes, is read as the shell would.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

import msgspec

from serving.model.errors import InvalidValue

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_SHELL = ("/bin/sh", "-c")
_EXEC = "exec "
# Options of the interpreter without a value.
_HARMLESS = frozenset({"-u", "-B"})
_EXPECTED = "a command that Python runs: python SCRIPT, python -m MODULE, or a script of Python such as uvicorn"


class PythonCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command of Python: the interpreter, its options, and its arguments: a script, or "-m" and a module, and theirs."""

    interpreter: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...]


def python_command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    find: Callable[[str, str], str | None],
    first_line: Callable[[str], str],
) -> PythonCommand:
    """The command that an interpreter runs. ``find`` looks for a command in a PATH; ``first_line`` reads that of a file.

    Raises:
        InvalidValue: for a command that no Python interpreter runs.
    """
    words = _without_shell(arguments, environment)
    path = find(words[0], environment.get("PATH", ""))
    if path is None:
        raise InvalidValue(text=words[0], expected="a command in the pod's PATH")
    if _PYTHON.fullmatch(path.rpartition("/")[2]):
        count = next((at for at, word in enumerate(words[1:]) if word not in _HARMLESS), len(words) - 1)
        options, rest = words[1 : count + 1], words[count + 1 :]
        is_module = len(rest) > 1 and rest[0] == "-m"
        if not is_module and (not rest or rest[0].startswith("-")):
            raise InvalidValue(text=shlex.join(words), expected=_EXPECTED)
        return PythonCommand(interpreter=path, options=tuple(options), arguments=tuple(rest))
    line = first_line(path)
    interpreter = line.removeprefix("#!").split()
    if not line.startswith("#!") or not interpreter or not _PYTHON.fullmatch(interpreter[0].rpartition("/")[2]):
        raise InvalidValue(text=words[0], expected=_EXPECTED)
    return PythonCommand(interpreter=interpreter[0], options=tuple(interpreter[1:]), arguments=(path, *words[1:]))


def _without_shell(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words of a command; those of a shell's with its variables in place."""
    if tuple(arguments[:2]) != _SHELL or len(arguments) != len(_SHELL) + 1:
        return list(arguments)
    text = arguments[2]
    bare = _VARIABLE.sub("", text)
    if not text.startswith(_EXEC) or re.search(r"[$`;&|<>*?~()\\]", bare):
        raise InvalidValue(text=text, expected="a command without shell syntax other than variables")
    values = [environment.get(name.strip("{}"), "") for name in _VARIABLE.findall(text)]
    if any(shlex.quote(value) != value for value in values):
        raise InvalidValue(text=text, expected="variables without characters that mean something to a shell")
    filled = iter(values)
    return shlex.split(_VARIABLE.sub(lambda _: next(filled), text).removeprefix(_EXEC))
