"""AWS API calls: the signature equals botocore's, and a role is renewed before it expires."""

import datetime as dt
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

import pytest

from serving.core.model.errors import CloudRefused, CloudUnavailable
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.nodes.nodegroup.io.clouds.awsquery import AwsApis, opened_apis, text_of

ROLE = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>role-{}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>{}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class Account:
    """An API that records each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        self.body = "<a xmlns='urn:x'><b>c</b></a>"
        self.role_s = 3600.0

    def answer(self, body: bytes) -> bytes:
        """Return a role for STS, and the body for other actions."""
        if dict(parse_qsl(body.decode()))["Action"] != "AssumeRole":
            return self.body.encode()
        until = dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=self.role_s)
        return ROLE.format(len(self.requests), until.strftime("%Y-%m-%dT%H:%M:%SZ")).encode()

    def keys(self) -> list[str]:
        """The access key of each request."""
        return [headers["authorization"].partition("Credential=")[2].split("/")[0] for headers, _ in self.requests]


@pytest.fixture
def account() -> Iterator[tuple[Account, str]]:
    account = Account()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            account.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            answer = account.answer(body)
            self.send_response(account.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Do nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield account, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def settings(url: str, role: str = "") -> NodeGroupDaemonSettings:
    return NodeGroupDaemonSettings(aws_region="eu-west-1", aws_endpoint_url=url, aws_assume_role_arn=role)


async def called(apis: AwsApis) -> str:
    return text_of(await apis.call("ec2", "DescribeInstances", {"InstanceId.1": "i-1 ä&"}), "b")


async def test_request_signature_equals_botocores(account: tuple[Account, str]) -> None:
    auth = pytest.importorskip("botocore.auth")
    request_class = pytest.importorskip("botocore.awsrequest").AWSRequest
    credentials = pytest.importorskip("botocore.credentials").Credentials("own", "secret")
    recorder, url = account
    async with opened_apis(settings(url)) as apis:
        assert await called(apis) == "c"
    ((headers, body),) = recorder.requests
    authorization = headers["authorization"]
    names = authorization.partition("SignedHeaders=")[2].split(",")[0].split(";")
    assert {"host", "content-type", "x-amz-date"} <= set(names)
    request = request_class("POST", f"{url}/", headers={name: headers[name] for name in names}, data=body)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = auth.SigV4Auth(credentials, "ec2", "eu-west-1")
    expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    assert authorization.endswith(f"Signature={expected}")


async def test_assumed_role_is_cached_and_renewed_before_expiry(account: tuple[Account, str]) -> None:
    recorder, url = account
    async with opened_apis(settings(url, role="arn:aws:iam::1:role/x")) as apis:
        await called(apis)
        await called(apis)
        assert recorder.keys() == ["own", "role-1", "role-1"]
        recorder.role_s = 200.0
        apis._assumed = None
        await called(apis)
        await called(apis)
    assert recorder.keys()[3:] == ["own", "role-4", "own", "role-6"]


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (403, "<R><Errors><Error><Code>AuthFailure</Code><Message>no</Message></Error></Errors></R>", CloudRefused),
        (503, "<R><Errors><Error><Code>Unavailable</Code></Error></Errors></R>", CloudUnavailable),
        (200, "not XML", CloudUnavailable),
        (302, "", CloudUnavailable),
    ],
)
async def test_aws_error_response_raises_the_matching_error(
    account: tuple[Account, str], status: int, body: str, error: type[Exception]
) -> None:
    recorder, url = account
    recorder.status, recorder.body = status, body
    async with opened_apis(settings(url)) as apis:
        with pytest.raises(error, match="AWS: DescribeInstances"):
            await called(apis)
