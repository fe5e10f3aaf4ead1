"""Writes the commit into the wheel and the source distribution, where ``serving version`` reads it."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds ``serving/_commit``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatchling calls this before it builds; an editable installation asks git instead."""
        # Hatchling runs this file alone, where no module of the project can be imported.
        commit = runpy.run_path(str(Path(__file__).with_name("version.py")))["commit"]
        if version == "editable" or not (known := commit()):
            return
        note = Path(self.directory, ".commit")
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{known}\n")
        build_data["force_include"][str(note)] = "serving/_commit"
