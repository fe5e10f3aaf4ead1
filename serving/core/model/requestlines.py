"""Formats lines of a request log by a template, as in Knative. Pure.

The fields are ``.Request``, ``.Response``, ``.Revision`` and ``.TraceID`` of knative/serving 98e5ef90,
pkg/http/request_log.go. ``.Request`` has the fields of Go's http.Request that a log needs. ``.Request.Header`` has the
headers that the template names.
"""

import functools
import re
from urllib.parse import unquote

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.gotemplate import Fields, fill_template

_LITERAL = re.compile(r"""["`]([!#-~]+)["`]""")


class LoggedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The revision and the pod named in a log line. Unknown texts are ""."""

    name: str = ""
    namespace: str = ""
    service: str = ""
    configuration: str = ""
    pod_name: str = ""
    pod_ip: str = ""


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An ended request. ``size_bytes`` is -1 if it is unknown; ``headers`` are names and values in order."""

    method: str
    target: str
    host: str
    protocol: str
    size_bytes: int
    address: str
    user_agent: str
    referer: str
    headers: tuple[tuple[str, str], ...] = ()
    status: int
    response_bytes: int
    latency_s: float
    trace_id: str


@functools.lru_cache(maxsize=8)
def headers_named(template: str) -> frozenset[str]:
    """All quoted texts in a log template, in lower case: the names of headers that the template may read."""
    return frozenset(text.lower() for text in _LITERAL.findall(template))


def check_template(text: str) -> None:
    """Check the syntax and the fields of a template. Raises ``InvalidValue``."""
    example = LoggedRequest(
        method="GET",
        target="/",
        host="hello.example.com",
        protocol="HTTP/1.1",
        size_bytes=0,
        address="192.0.2.1",
        user_agent="",
        referer="",
        headers=tuple((name, "example") for name in sorted(headers_named(text))),
        status=200,
        response_bytes=0,
        latency_s=0.5,
        trace_id="",
    )
    fill_template(text, _fields(example, LoggedRevision()))


def request_line(template: str, request: LoggedRequest, revision: LoggedRevision) -> str:
    """The line of a request, with a line feed at its end.

    If the template needs a value that does not exist, the line is Knative's error text.
    """
    try:
        line = fill_template(template, _fields(request, revision))
    except InvalidValue:
        line = (
            f"Invalid request log template: method: {request.method}, response code: {request.status}, "
            f"latency: {request.latency_s}, url: {request.target}"
        )
    return line if line.endswith("\n") else f"{line}\n"


def _fields(request: LoggedRequest, revision: LoggedRevision) -> Fields:
    path, _, query = request.target.partition("?")
    major, _, minor = request.protocol.removeprefix("HTTP/").partition(".")
    of_request = {
        "Method": request.method,
        "URL": Fields({"Path": unquote(path), "RawQuery": query}, text=request.target),
        "RequestURI": request.target,
        "Host": request.host,
        "Proto": request.protocol,
        "ProtoMajor": int(major),
        "ProtoMinor": int(minor),
        "ContentLength": request.size_bytes,
        "RemoteAddr": request.address,
        "UserAgent": request.user_agent,
        "Referer": request.referer,
        "Header": _headers(request),
    }
    of_response = {"Code": request.status, "Size": request.response_bytes, "Latency": request.latency_s}
    of_revision = {
        "Name": revision.name,
        "Namespace": revision.namespace,
        "Service": revision.service,
        "Configuration": revision.configuration,
        "PodName": revision.pod_name,
        "PodIP": revision.pod_ip,
    }
    return Fields(
        {
            "Request": Fields(of_request),
            "Response": Fields(of_response),
            "Revision": Fields(of_revision),
            "TraceID": request.trace_id,
        }
    )


def _headers(request: LoggedRequest) -> Fields:
    values: dict[str, tuple[str, ...]] = {}
    for name, value in request.headers:
        values[_canonical(name)] = (*values.get(_canonical(name), ()), value)

    def first(name: str) -> str:
        return values.get(_canonical(name), ("",))[0]

    return Fields({**values, "Get": first})


def _canonical(name: str) -> str:
    """The name as Go writes it: "X-Request-Id"."""
    return "-".join(part.capitalize() for part in name.split("-"))
