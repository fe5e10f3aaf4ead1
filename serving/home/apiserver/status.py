"""``Status`` objects: the bodies of errors and of deletions.

Input: an error of ``serving.model.errors``, or a ``Fault`` of the HTTP layer; output: the object and its HTTP status.
``cluster/kubeclient.py`` is the inverse.
"""

from collections.abc import Mapping
from http import HTTPStatus

from serving.home.apiserver.paths import RequestTarget
from serving.model.errors import ApplyConflict, ClusterError, Invalid
from serving.model.objects import Object

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}


class Fault(Exception):
    """An invalid request; an invalid object is a ``ClusterError``."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def refusal_code(error: ClusterError | Fault) -> int:
    """The HTTP status of an error."""
    return error.code if isinstance(error, Fault) else error.status


def refusal(error: ClusterError | Fault, target: RequestTarget | None = None) -> Object:
    """The ``Status`` of an error; ``target`` is the target of the request."""
    code = refusal_code(error)
    reason = _REASONS.get(code, HTTPStatus(code).phrase) if isinstance(error, Fault) else error.reason
    status: Object = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": reason,
        "code": code,
    }
    if target is not None:
        # Clients print "The Service x is invalid" from it: for invalid objects it is the kind and not its plural.
        word = target.kind.name if isinstance(error, Invalid) else target.kind.plural
        details: Object = {"name": target.name, "group": target.kind.group, "kind": word}
        if isinstance(error, Invalid) and error.problems:
            details["causes"] = [
                {"reason": "FieldValueInvalid", "message": problem.what, "field": problem.where}
                for problem in error.problems
            ]
        if isinstance(error, ApplyConflict):
            details["causes"] = [
                {"reason": "FieldManagerConflict", "message": f"conflict with {one.manager}", "field": one.path}
                for one in error.fields
            ]
        status["details"] = {key: value for key, value in details.items() if value}
    return status


def success(target: RequestTarget, uid: str) -> Object:
    """The ``Status`` of a completed deletion."""
    details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


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
