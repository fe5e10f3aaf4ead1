"""Interpolates variables into the texts of a compose file. Pure.

Follows the Compose Specification (12-interpolation.md) and the reference implementation
(github.com/compose-spec/compose-go, ``template``): ``$NAME``, ``${NAME}``, ``${NAME-default}``, ``${NAME+other}``,
``${NAME?message}``, with a colon where an empty variable counts as unset, and ``$$`` for a dollar sign. Inserted text
is not interpolated again.
"""

import re
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from serving.core.model.errors import InvalidValue, Problem, SettingsError

_NAME = "[_a-zA-Z][_a-zA-Z0-9]*"
# Other $ characters are text.
_VARIABLE = re.compile(rf"\$(?:(?P<dollar>\$)|(?P<name>{_NAME})|\{{)")
_BRACED = re.compile(rf"(?P<name>{_NAME})(?P<operator>:?[-+?]|$)")
_BRACE = re.compile("[{}]")
_FORMS = "${NAME}, or ${NAME:-default}, ${NAME:+other} or ${NAME:?message}; $$ is a dollar sign"
_REQUIRED = "a variable with a value, in the environment or in .env beside the file"
# Length of a text in errors.
_SHOWN_CHARACTERS = 40
_DEPTH_MAX = 32
# The size limit of an API request: variables of variables could fill the memory.
_INSERTED_MAX_CHARACTERS = 4 * 2**20


class Interpolation:
    """Interpolates variables of the environment and of a file; the environment overrides the file.

    ``variables`` contains both. ``unset`` contains the names that were used without a value or default.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._defined: dict[str, str] = {}
        self.variables = ChainMap(dict(environment), self._defined)
        self.unset: set[str] = set()
        self._inserted = 0

    def define(self, name: str, value: str, *, is_literal: bool) -> str:
        """Set a variable of the file, interpolated unless ``is_literal``; return its value. Raises ``InvalidValue``."""
        self._defined[name] = value if is_literal else self.text(value)
        return self._defined[name]

    def services(self, services: object, where: str) -> Any:  # noqa: ANN401 - as it came from YAML
        """Copy the services and interpolate all texts except keys.

        ``where`` is the position for error messages. Raises ``SettingsError`` with all problems.
        """
        problems: list[Problem] = []
        # A YAML anchor is one object in several places, and may contain itself.
        copies: dict[int, Any] = {}

        def copied(value: object, where: str) -> Any:  # noqa: ANN401 - as above
            if id(value) in copies:
                return copies[id(value)]
            if isinstance(value, dict):
                pairs = copies[id(value)] = {}
                pairs.update((key, copied(child, f"{where}.{key}")) for key, child in value.items())
                return pairs
            if isinstance(value, list):
                items = copies[id(value)] = []
                items.extend(copied(child, f"{where}[{at}]") for at, child in enumerate(value))
                return items
            if isinstance(value, str):
                try:
                    return self.text(value)
                except InvalidValue as error:
                    problems.append(Problem(where=where, what=repr(error.text), expected=error.expected))
            return value

        interpolated = copied(services, where)
        if problems:
            raise SettingsError(problems)
        return interpolated

    def text(self, text: str, depth: int = 0) -> str:
        """The text with variables inserted. Raises ``InvalidValue``."""
        if depth > _DEPTH_MAX:
            raise InvalidValue(
                text=text[:_SHOWN_CHARACTERS], expected=f"at most {_DEPTH_MAX} variables within each other"
            )
        parts: list[str] = []
        start = 0
        while match := _VARIABLE.search(text, start):
            parts.append(text[start : match.start()])
            start = match.end()
            if match["dollar"]:
                inserted = "$"
            elif match["name"]:
                inserted = self._value(match["name"])
            else:
                end = _closing_brace(text, start)
                inserted = self._braced(text[start:end], depth)
                start = end + 1
            self._inserted += len(inserted)
            if self._inserted > _INSERTED_MAX_CHARACTERS:
                raise InvalidValue(
                    text=text[:_SHOWN_CHARACTERS], expected=f"of at most {_INSERTED_MAX_CHARACTERS:,} characters in all"
                )
            parts.append(inserted)
        return "".join([*parts, text[start:]])

    def _value(self, name: str) -> str:
        if name not in self.variables:
            self.unset.add(name)
        return self.variables.get(name, "")

    def _braced(self, body: str, depth: int) -> str:
        match = _BRACED.match(body)
        if match is None:
            raise InvalidValue(text=f"${{{body[:_SHOWN_CHARACTERS]}}}", expected=_FORMS)
        name, operator, other = match["name"], match["operator"], body[match.end() :]
        if not operator:
            return self._value(name)
        value = self.variables.get(name)
        is_set = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("+"):
            return self.text(other, depth + 1) if is_set else ""
        if is_set:
            return value or ""
        if operator.endswith("-"):
            return self.text(other, depth + 1)
        message = self.text(other, depth + 1)
        raise InvalidValue(text=f"${name}", expected=f"{_REQUIRED}: {message}" if message else _REQUIRED)


def _closing_brace(text: str, start: int) -> int:
    """The position of the brace that closes the brace at ``start``. Raises ``InvalidValue``."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise InvalidValue(text=text[start - 2 :][:_SHOWN_CHARACTERS], expected=f"closed by a brace: {_FORMS}")
