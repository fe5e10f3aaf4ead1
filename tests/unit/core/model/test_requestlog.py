"""The fields of a request in a request log's template."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.gotemplate import parse_template
from serving.core.model.requestlog import ServedRequest, ServingPod, read_request_log_template, values_of

REQUEST = ServedRequest(
    method="POST",
    target="/a%20b?x=1",
    host="hello.example.com",
    protocol="HTTP/1.1",
    client="10.0.0.1",
    headers=[("user-agent", "curl"), ("x-tag", "a"), ("X-Tag", "b"), ("x-b3-traceid", "b3")],
    length=5,
    status=201,
    size=12,
    latency_s=0.25,
)
REVISION = ServingPod(
    name="hello-00001", namespace="default", service="hello", configuration="hello", pod="p", address="10.0.0.2"
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{.Request.Method}} {{.Request.RequestURI}} {{.Request.Proto}}", "POST /a%20b?x=1 HTTP/1.1"),
        ("{{.Request.URL}} {{.Request.URL.Path}} {{.Request.URL.RawQuery}}", "/a%20b?x=1 /a b x=1"),
        ("{{.Request.URL.EscapedPath}} {{.Request.URL.RequestURI}}", "/a%20b /a%20b?x=1"),
        ("{{.Request.Host}} {{.Request.RemoteAddr}} {{.Request.ContentLength}}", "hello.example.com 10.0.0.1 5"),
        ("{{.Request.UserAgent}}|{{.Request.Referer}}", "curl|"),
        ('{{index .Request.Header "X-Tag"}} {{index .Request.Header "X-None"}}', "[a b] []"),
        ('{{.Request.Header.Get "x-tag"}}{{.Request.Header.Get "none"}}', "a"),
        ("{{.Response.Code}} {{.Response.Size}} {{.Response.Latency}}s", "201 12 0.25s"),
        ("{{.Revision.Name}} {{.Revision.Namespace}} {{.Revision.Service}}", "hello-00001 default hello"),
        ("{{.Revision.Configuration}} {{.Revision.PodName}} {{.Revision.PodIP}}", "hello p 10.0.0.2"),
        ("{{.TraceID}}", "b3"),
    ],
)
def test_a_template_has_the_fields_of_knative(template: str, text: str) -> None:
    assert parse_template(read_request_log_template(template))(values_of(REQUEST, REVISION)) == text


def test_the_id_of_a_trace_is_that_of_its_traceparent() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = [("traceparent", f"00-{trace}-b7ad6b7169203331-01"), ("x-b3-traceid", "b3")]
    request = ServedRequest(
        **{**{name: getattr(REQUEST, name) for name in REQUEST.__struct_fields__}, "headers": headers}
    )
    assert values_of(request, REVISION)["TraceID"] == trace


def test_a_template_may_index_what_a_header_has() -> None:
    assert read_request_log_template('{{index (index .Request.Header "X-A") 0}}')


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{.Request.Metod}}", "there is no field Request.Metod"),
        ("{{.Response.Body}}", "there is no field Response.Body"),
        ("{{.Request.Method", "the action is not closed"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused(template: str, why: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        read_request_log_template(template)
    assert why in raised.value.expected
