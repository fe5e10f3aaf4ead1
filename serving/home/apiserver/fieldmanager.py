"""The field manager of a request: the parameter ``fieldManager``, or the program that the User-Agent names."""

from collections.abc import Mapping

from serving.home.apiserver.status import Fault

# kube-apiserver's bound, and its name for a client that gives none.
_LENGTH_MAX = 128
_UNKNOWN = "unknown"


def field_manager(query: Mapping[str, str], user_agent: str) -> str:
    """The manager that owns the fields of a write; never empty. Raises ``Fault`` 400."""
    given = query.get("fieldManager", "")
    if len(given) > _LENGTH_MAX or not given.isprintable():
        raise Fault(400, f"fieldManager: at most {_LENGTH_MAX} printable characters")
    program = "".join(letter for letter in user_agent.partition("/")[0] if letter.isprintable())
    return given or program.strip()[:_LENGTH_MAX] or _UNKNOWN
