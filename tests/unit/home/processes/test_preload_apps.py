"""The commands that can be preloaded."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.home.processes.preload_apps import PythonCommand, python_command

FILES = {"python3": "/bin/python3", "uvicorn": "/v/bin/uvicorn", "node": "/bin/node", "tool": "/bin/tool"}
LINES = {"/v/bin/uvicorn": "#!/v/bin/python -I", "/bin/node": "", "/bin/tool": "#!/bin/bash"}


def command(*arguments: str) -> PythonCommand:
    return python_command(
        arguments, {"PORT": "8080", "ODD": "a b"}, find=lambda name, _: FILES.get(name), first_line=LINES.__getitem__
    )


@pytest.mark.parametrize(
    ("arguments", "interpreter", "options", "rest"),
    [
        (("python3", "app.py", "-x"), "/bin/python3", (), ("app.py", "-x")),
        (("python3", "-u", "-B", "app.py"), "/bin/python3", ("-u", "-B"), ("app.py",)),
        (("python3", "-m", "flask", "run"), "/bin/python3", (), ("-m", "flask", "run")),
        (("uvicorn", "m:app"), "/v/bin/python", ("-I",), ("/v/bin/uvicorn", "m:app")),
        (("/bin/sh", "-c", "exec uvicorn m:app --port $PORT"), "/v/bin/python", ("-I",), ("/v/bin/uvicorn", "m:app", "--port", "8080")),
        (("/bin/sh", "-c", 'exec python3 a.py "${PORT}"'), "/bin/python3", (), ("a.py", "8080")),
    ],
)  # fmt: skip
def test_python_commands_are_split_for_preloading(
    arguments: tuple[str, ...], interpreter: str, options: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    assert command(*arguments) == PythonCommand(interpreter=interpreter, options=options, arguments=rest)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("gone",), "a command in the pod's PATH"),
        (("node", "app.js"), "a command that Python runs"),
        (("tool",), "a command that Python runs"),
        (("python3",), "a command that Python runs"),
        (("python3", "-c", "pass"), "a command that Python runs"),
        (("python3", "-m"), "a command that Python runs"),
        (("/bin/sh", "-c", "python3 a.py && echo"), "without shell syntax"),
        (("/bin/sh", "-c", "exec python3 a.py > log"), "without shell syntax"),
        (("/bin/sh", "-c", "exec python3 a.py $ODD"), "variables without characters"),
    ],
)
def test_commands_that_cannot_be_preloaded_are_rejected_with_reason(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        command(*arguments)
    assert expected in refused.value.expected
