"""How to run ``serving`` in another shell, for a program that is not on PATH, as after ``make run``."""

import shlex
import shutil
from pathlib import Path

_NAME = "serving"


def path_lines(program: Path, python: Path, path: str) -> list[str]:
    """Lines that say how to run this program in another shell; none if ``serving`` on PATH is this program.

    ``program`` is how this process was started, ``python`` its interpreter, whose folder has the program too.
    """
    own = program.absolute() if program.name == _NAME else python.with_name(_NAME)
    found = shutil.which(_NAME, path=path)
    if found is not None and Path(found).resolve() == own.resolve():
        return []
    if not own.exists():
        return [f"commands:  {shlex.quote(str(python))} -m serving ..."]
    return [f"commands:  {shlex.quote(str(own))} is not on PATH: export PATH={shlex.quote(str(own.parent))}:$PATH"]
