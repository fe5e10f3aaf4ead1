"""Request log lines, rendered from a template of Knative."""

import json

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.requestlines import LoggedRequest, LoggedRevision, check_template, headers_named, request_line
from serving.core.settings.queueproxy import RequestLogSettings

REVISION = LoggedRevision(
    name="hello-00001", namespace="shop", service="hello", configuration="hello", pod_name="p", pod_ip="10.0.0.2"
)
REQUEST = LoggedRequest(
    method="POST",
    target="/a%20b?c=d",
    host="hello.example.com",
    protocol="HTTP/1.1",
    size_bytes=3,
    address="192.0.2.1",
    user_agent="curl/8",
    referer="there",
    headers=(("x-request-id", "one"), ("x-request-id", "two")),
    status=201,
    response_bytes=11,
    latency_s=0.25,
    trace_id="0af7",
)


def test_default_template_renders_request_line_of_knative() -> None:
    line = request_line(RequestLogSettings().request_log_template, REQUEST, REVISION)
    assert line.endswith("}\n")
    entry = json.loads(line)
    assert entry["httpRequest"]["requestUrl"] == "/a%20b?c=d"
    assert (entry["httpRequest"]["latency"], entry["httpRequest"]["serverIp"]) == ("0.25s", "10.0.0.2")
    assert entry["traceId"] == "0af7"


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{{.Revision.Namespace}}/{{.Revision.Service}} {{.Response.Code}}", "shop/hello 201"),
        ("{{.Request.URL}} {{.Request.URL.Path}} {{.Request.URL.RawQuery}}", "/a%20b?c=d /a b c=d"),
        ('{{.Request.Header.Get "X-request-ID"}} {{index .Request.Header "X-Request-Id"}}', "one [one two]"),
        ('[{{.Request.Header.Get "Via"}}]', "[]"),
        ("{{.Request.Proto}} {{.Request.ProtoMajor}}.{{.Request.ProtoMinor}}", "HTTP/1.1 1.1"),
        ("a\n", "a"),
    ],
)
def test_template_reads_fields_of_knative(template: str, line: str) -> None:
    check_template(template)
    assert request_line(template, REQUEST, REVISION) == f"{line}\n"


def test_failed_template_logs_error_line_of_knative() -> None:
    template = '{{index (index .Request.Header "Via") 0}}'
    check_template(template)
    assert request_line(template, msgspec.structs.replace(REQUEST, headers=()), REVISION) == (
        "Invalid request log template: method: POST, response code: 201, latency: 0.25, url: /a%20b?c=d\n"
    )


@pytest.mark.parametrize("template", ["{{.Request.Body}}", "{{range .Request.Header}}{{end}}", "{{.Response"])
def test_invalid_template_is_rejected(template: str) -> None:
    with pytest.raises(InvalidValue):
        check_template(template)


def test_template_headers_are_its_quoted_names() -> None:
    assert headers_named('{{.Request.Header.Get "X-One"}} {{index .Request.Header `Two`}} a b') == {"x-one", "two"}
