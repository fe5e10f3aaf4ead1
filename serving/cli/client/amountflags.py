"""Flags about nodes whose values are amounts: read one by one, with every problem kept until all are read."""

from collections.abc import Callable, Mapping
from typing import Any

from serving.model.errors import InvalidValue, Problem, SettingsError


class AmountFlags:
    """The flags of one command, by the names that click gives them: "node_cpu" is --node-cpu."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self._flags = flags
        self._problems: list[Problem] = []

    def __repr__(self) -> str:
        return f"AmountFlags({len(self._problems)} problems)"

    def above_zero(self, name: str, parse: Callable[[str], float], expected: str) -> float:
        """The value of a flag; 0 with a problem unless it can be read and is above 0."""
        try:
            value = parse(self._flags[name])
        except InvalidValue:
            value = 0.0
        if value <= 0:
            where = f"--{name.replace('_', '-')}"
            self.add(Problem(where=where, what=f"{self._flags[name]!r} is not right", expected=expected))
        return value

    def count_max(self, count: int) -> int:
        """The most nodes: --nodes-max, or as many as --nodes and at least one."""
        count_max: int = self._flags["nodes_max"] or max(count, 1)
        if count_max < count:
            what = f"{count_max} is below --nodes {count}"
            self.add(Problem(where="--nodes-max", what=what, expected=f"at least {count}"))
        return count_max

    def add(self, problem: Problem) -> None:
        """Keep another problem."""
        self._problems.append(problem)

    def check(self) -> None:
        """Raises ``SettingsError`` with every problem, if there is one."""
        if self._problems:
            raise SettingsError(self._problems)
