"""``serving deploy --asgi app:app``: the command that runs an ASGI app whose queue-proxy is in its process.

The interpreter is that of the app's virtual environment, which must have this package and uvicorn, else the one that runs
this command.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from serving.model.errors import InvalidValue

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_IMPORT_MAX_S = 30.0


def asgi_command(app: str, virtualenv: Path | None) -> str:
    """The command for "module:name". Raises ``InvalidValue`` for another text, or where an environment lacks a package."""
    if not _NAME.fullmatch(app):
        raise InvalidValue(text=app, expected="a module and the name of an ASGI app in it, as in --asgi app:app")
    interpreter = str(virtualenv / "bin" / "python") if virtualenv else sys.executable
    missing = _missing_package(interpreter)
    if missing:
        expected = f"{missing} in the environment of {interpreter}: {interpreter} -m pip install 'serving[asgi]'"
        raise InvalidValue(text=app, expected=expected)
    return shlex.join([interpreter, "-m", "serving.asgi", app])


def _missing_package(interpreter: str) -> str:
    """What an interpreter cannot import of what the command needs; "" for nothing."""
    program = "import importlib.util as u; print(*[n for n in ('serving', 'uvicorn') if u.find_spec(n) is None])"
    try:
        # -P: a file of the app's folder that is called so is not the package.
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [interpreter, "-P", "-c", program], capture_output=True, text=True, timeout=_IMPORT_MAX_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a Python that starts ({error})"
    if done.returncode:
        return (
            f"Python 3.11 or newer ({done.stderr.strip().splitlines()[-1]})" if done.stderr.strip() else "Python 3.11"
        )
    return " and ".join(done.stdout.split())
