"""Limits the bytes to which a small manifest can expand. Pure.

References in variables multiply: 26 variables, each twice the one before, are 67 million times the first. Each piece is
counted before it is made.
"""

import re
from collections.abc import Mapping

from serving.core.model.errors import InvalidValue

ENVIRONMENT_BYTES_MAX = 2**20
"""Largest environment of a container, and largest command line, with references expanded. The kernel allows 2 MiB of both."""

# A name has no "$", so that a text of many "$(" is scanned once.
_REFERENCE = re.compile(r"\$\$|\$\(([^$)]*)\)")


class ByteBudget:
    """Counts bytes up to a limit; ``what`` names the limit in errors."""

    def __init__(self, what: str, bytes_max: int = ENVIRONMENT_BYTES_MAX) -> None:
        self._what = what
        self._bytes_max = bytes_max
        self.spent = 0

    def spend(self, byte_count: int) -> None:
        """Count bytes before they are created. Raises ``InvalidValue`` beyond the limit."""
        self.spent += byte_count
        if self.spent > self._bytes_max:
            raise InvalidValue(text=self._what, expected=f"at most {self._bytes_max} bytes, with references expanded")


def expanded(word: str, variables: Mapping[str, str], budget: ByteBudget) -> str:
    """Expand ``$(NAME)`` as Kubernetes does: once, unknown names stay, and ``$$`` is a dollar.

    Raises ``InvalidValue`` beyond the budget, before the text is made.
    """
    if "$" not in word:
        budget.spend(len(word))
        return word
    pieces, end = [], 0
    for match in _REFERENCE.finditer(word):
        name = match[1]
        pieces += [word[end : match.start()], "$" if name is None else variables.get(name, match[0])]
        budget.spend(len(pieces[-2]) + len(pieces[-1]))
        end = match.end()
    pieces.append(word[end:])
    budget.spend(len(pieces[-1]))
    return "".join(pieces)
