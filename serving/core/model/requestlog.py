"""Request logs: renders a template of Knative's ``logging.request-log-template`` for a request.

Input: a ``ServedRequest``; output: the values for a template, named as Go's ``http.Request`` and Knative have them. Source: Knative,
"Configuring request logs" (knative.dev/docs/serving/observability/logging/request-logging).
"""

import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.gotemplate import TemplateError, ValueMap, parse_template

_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


class ServingPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod of a response."""

    name: str
    namespace: str
    service: str = ""
    configuration: str = ""
    pod: str = ""
    address: str = ""


class ServedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An ended request. ``headers`` are names in any case with values, in order; ``length`` is -1 if it is unknown."""

    method: str
    target: str
    host: str
    protocol: str
    client: str
    headers: Sequence[tuple[str, str]]
    length: int
    status: int
    size: int
    latency_s: float


def read_request_log_template(text: str) -> str:
    """Read a template of request logs, which may use only fields of a request. Raises ``InvalidValue``."""
    try:
        parse_template(text)(_EXAMPLE)
    except TemplateError as error:
        expected = f"a Go template of .Request, .Response, .Revision and .TraceID ({error})"
        raise InvalidValue(text=text, expected=expected) from error
    return text


def values_of(request: ServedRequest, revision: ServingPod) -> dict[str, Any]:
    """The values available to a template."""
    headers: dict[str, list[str]] = {}
    for name, value in request.headers:
        headers.setdefault(_canonical(name), []).append(value)
    return _values(request, revision, headers, default=lambda _: [])


def _values(
    request: ServedRequest,
    revision: ServingPod,
    headers: Mapping[str, list[str]],
    *,
    default: Callable[[str], list[str]],
) -> dict[str, Any]:
    def first(name: str) -> str:
        return (headers.get(_canonical(name)) or ("",))[0]

    path, _, query = request.target.partition("?")
    trace = _TRACE_PARENT.match(first("traceparent"))
    url = {"Path": urllib.parse.unquote(path), "RawQuery": query, "Host": "", "Scheme": ""}
    of_url = {"String": lambda: request.target, "RequestURI": lambda: request.target, "EscapedPath": lambda: path}
    fields = {
        "Method": request.method,
        "URL": ValueMap(url, methods=of_url),
        "RequestURI": request.target,
        "Host": request.host,
        "Header": ValueMap(headers, methods={"Get": first}, default=default),
        "Proto": request.protocol,
        "RemoteAddr": request.client,
        "ContentLength": request.length,
    }
    methods = {"UserAgent": lambda: first("user-agent"), "Referer": lambda: first("referer")}
    return {
        "Request": ValueMap(fields, methods=methods),
        "Response": {"Code": request.status, "Size": request.size, "Latency": request.latency_s},
        "Revision": {
            "Name": revision.name,
            "Namespace": revision.namespace,
            "Service": revision.service,
            "Configuration": revision.configuration,
            "PodName": revision.pod,
            "PodIP": revision.address,
        },
        "TraceID": trace[1] if trace else first("x-b3-traceid"),
    }


def _canonical(name: str) -> str:
    """A header's name in Go's form: "user-agent" is "User-Agent"."""
    return "-".join(part.capitalize() for part in name.split("-"))


# Values with which a template is checked: every header has one.
_EXAMPLE = _values(
    ServedRequest(
        method="GET",
        target="/",
        host="example.com",
        protocol="HTTP/1.1",
        client="127.0.0.1",
        headers=(),
        length=0,
        status=200,
        size=2,
        latency_s=0.001,
    ),
    ServingPod(name="hello-00001", namespace="default"),
    {},
    default=lambda name: [name],
)
