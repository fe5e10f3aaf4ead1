"""The audit log of the API: user, access and time of each request, one line of JSON each.

Events have a kube-apiserver's format (``audit.k8s.io/v1``, level Metadata): they never contain a body of a request or
response, and so no Secrets. A watch, a followed log or a session in a pod has one line at its begin and one at its end.
A thread writes the lines. A full disk loses lines, but never fails a request.
"""

import math
import uuid
from collections.abc import Callable

import msgspec

from serving.core.model.grants import Grant
from serving.home.apiserver.roles import FULL_GRANT, Access
from serving.net.aio.clock import micro_stamp
from serving.net.cluster.kinds import SECRET

AUDIT_FILE = "audit.log"
AUDIT_BYTES_MAX = 10 * 2**20
"""Size of each file of the log; five are kept."""

AUDIT_FILES_MAX = 5
# Logged requests without a valid token per second; without a limit, an attacker could displace all other entries.
_STRANGERS_MAX = 10
_AGENT_MAX = 256
_FAILED = 400
_REASON = "authorization.k8s.io/reason"


class _Status(msgspec.Struct, frozen=True):
    code: int
    metadata: dict[str, str] = {}


class _User(msgspec.Struct, frozen=True):
    username: str
    groups: list[str]


class _ObjectReference(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    resource: str
    namespace: str = ""
    name: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class _AuditEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    kind: str = "Event"
    api_version: str = "audit.k8s.io/v1"
    level: str = "Metadata"
    audit_id: str = msgspec.field(name="auditID")
    stage: str
    request_uri: str = msgspec.field(name="requestURI")
    verb: str
    user: _User
    source_ips: list[str] = msgspec.field(name="sourceIPs")
    user_agent: str
    object_ref: _ObjectReference | None
    response_status: _Status
    request_received_timestamp: str
    stage_timestamp: str
    annotations: dict[str, str]


class AuditedRequest(msgspec.Struct, kw_only=True):
    """An API request, as recorded in the audit log.

    ``source`` is the client's address, and ``agent`` its User-Agent. ``grant`` is the user and role, None without a
    valid token. ``access`` is the authorized verb and resource, of the API version ``version``. ``reason`` is why the
    request was refused. ``is_stream``: the response is a stream, such as a watch.
    """

    uri: str
    verb: str
    source: str
    agent: str
    received_s: float
    grant: Grant | None = None
    access: Access | None = None
    version: str = ""
    reason: str = ""
    is_stream: bool = False
    audit_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def user(self) -> Grant:
        """The user and role of an authorized request."""
        assert self.grant is not None
        return self.grant


class AuditLog:
    """Formats audit events and passes lines to ``write``, which must not block."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._encoder = msgspec.json.Encoder()
        self._second = -math.inf
        self._strangers = self._omitted = 0

    def record(self, request: AuditedRequest, *, code: int, now_s: float, has_ended: bool = True) -> None:
        """Log the end of a request, or the start of a stream. ``now_s`` is seconds since the epoch."""
        if _is_routine(request) and code < _FAILED:
            return
        annotations = {}
        # The line about guesses from an address appears at most once a minute, and is never dropped.
        if request.grant is None and not request.reason:
            if not self._is_within_budget(now_s):
                return
            if self._omitted:
                annotations[_REASON] = f"{self._omitted} requests without a valid token are not logged"
                self._omitted = 0
        if request.access is not None:
            annotations["authorization.k8s.io/decision"] = "forbid" if request.reason else "allow"
        if request.reason:
            annotations[_REASON] = request.reason
        grant = request.grant
        event = _AuditEvent(
            audit_id=request.audit_id,
            stage="ResponseComplete" if has_ended else "ResponseStarted",
            request_uri=request.uri,
            verb=request.access.verb if request.access else request.verb,
            user=_User(grant.user, grant.groups) if grant else _User("", []),
            source_ips=[request.source],
            user_agent=request.agent[:_AGENT_MAX],
            object_ref=_reference(request),
            response_status=_Status(code),
            request_received_timestamp=micro_stamp(request.received_s),
            stage_timestamp=micro_stamp(now_s),
            annotations=annotations,
        )
        self._write(self._encoder.encode(event))

    def _is_within_budget(self, now_s: float) -> bool:
        if now_s - self._second >= 1 or now_s < self._second:
            self._second = now_s
            self._strangers = 0
        self._strangers += 1
        if self._strangers <= _STRANGERS_MAX:
            return True
        self._omitted += 1
        return False


def _is_routine(request: AuditedRequest) -> bool:
    """Whether a request is a daemon's routine: a read, except of Secrets, with the state folder's token.

    Daemons send several of them per second.
    """
    access = request.access
    return (
        request.grant is FULL_GRANT
        and access is not None
        and access.verb in {"get", "list", "watch"}
        and access.resource != SECRET.plural
    )


def _reference(request: AuditedRequest) -> _ObjectReference | None:
    access = request.access
    if access is None or not access.resource:
        return None
    return _ObjectReference(
        resource=access.resource,
        namespace=access.namespace or "",
        name=access.name,
        api_group=access.group,
        api_version=request.version,
        subresource=access.subresource,
    )
