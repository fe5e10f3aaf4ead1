"""Signed calls of AWS APIs with the Query protocol: form parameters in, XML out.

awscrt, AWS' own library, supplies credentials and signatures (Signature Version 4), and needs no other package.
Credentials come from the environment, the profile, a web identity, or the role of the container or machine. boto3 and
botocore conflict with the Kubernetes client (docs/dependencies.md). Calls are not retried here, because the daemon's
next pass decides again.
"""

import asyncio
import io
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from serving.core.model.errors import CloudRefused, CloudUnavailable, Problem, SettingsError
from serving.core.settings.nodegroup import NodeGroupDaemonSettings

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from awscrt.auth import AwsCredentialsProviderBase

Parameters = Mapping[str, str]

_VERSIONS = {"autoscaling": "2011-01-01", "ec2": "2016-11-15", "sts": "2011-06-15"}
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_BUSY_CODES = ("Throttl", "RequestLimitExceeded", "ServiceUnavailable", "InternalFailure", "InternalError")
_FORM_TYPE = "application/x-www-form-urlencoded; charset=utf-8"
_SESSION_NAME = "serving-nodegroup"
# How long before its expiry an assumed role is renewed, in seconds.
_RENEWED_BEFORE_S = 300.0


class AwsApis:
    """The APIs of one account and region."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        credentials: "AwsCredentialsProviderBase",
        *,
        region: str,
        endpoint_url: str = "",
        role_arn: str = "",
    ) -> None:
        self._session = session
        self._credentials = credentials
        self._region = region
        self._endpoint_url = endpoint_url
        self._role_arn = role_arn
        self._assumed: AwsCredentialsProviderBase | None = None
        self._assumed_until_s = 0.0

    async def call(self, service: str, action: str, parameters: Parameters) -> "Element":
        """Call an action. Raises ``CloudRefused``, or ``CloudUnavailable`` if a later call may succeed."""
        credentials = await self._assumed_role(time.time()) if self._role_arn else self._credentials
        return await self._signed(credentials, service, action, parameters=parameters)

    async def _assumed_role(self, now_s: float) -> "AwsCredentialsProviderBase":
        if self._assumed is None or now_s >= self._assumed_until_s - _RENEWED_BEFORE_S:
            from awscrt.auth import AwsCredentialsProvider  # noqa: PLC0415 - an extra

            role = {"RoleArn": self._role_arn, "RoleSessionName": _SESSION_NAME}
            answer = await self._signed(self._credentials, "sts", "AssumeRole", parameters=role)
            path = "AssumeRoleResult/{*}Credentials/{*}"
            key, secret, token = (
                text_of(answer, path + name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
            )
            self._assumed = AwsCredentialsProvider.new_static(key, secret, token)
            self._assumed_until_s = datetime.fromisoformat(text_of(answer, path + "Expiration")).timestamp()
        return self._assumed

    async def _signed(
        self, credentials: "AwsCredentialsProviderBase", service: str, action: str, *, parameters: Parameters
    ) -> "Element":
        url = self._endpoint_url or f"https://{service}.{self._region}.{_domain(self._region)}"
        body = urlencode({"Action": action, "Version": _VERSIONS[service], **parameters}).encode()
        try:
            headers = await self._signature(credentials, service, url=url, body=body)
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                return _parsed(action, response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CloudUnavailable(f"AWS: {action}: {str(error) or type(error).__name__}") from error

    async def _signature(
        self, credentials: "AwsCredentialsProviderBase", service: str, *, url: str, body: bytes
    ) -> dict[str, str]:
        from awscrt import auth  # noqa: PLC0415 - an extra
        from awscrt.exceptions import AwsCrtError  # noqa: PLC0415 - as above
        from awscrt.http import HttpHeaders, HttpRequest  # noqa: PLC0415 - as above

        parts = urlsplit(url)
        lines = [("Host", parts.netloc), ("Content-Type", _FORM_TYPE), ("Content-Length", str(len(body)))]
        request = HttpRequest("POST", parts.path or "/", HttpHeaders(lines), io.BytesIO(body))
        config = auth.AwsSigningConfig(region=self._region, service=service, credentials_provider=credentials)
        try:
            signed = await asyncio.wrap_future(auth.aws_sign_request(request, config))
        except AwsCrtError as error:
            raise CloudUnavailable(f"AWS: no credentials: {error.name}") from error
        return dict(signed.headers)


@asynccontextmanager
async def opened_apis(settings: NodeGroupDaemonSettings) -> AsyncIterator[AwsApis]:
    """The AWS APIs, as a context. Raises ``SettingsError`` if the extra is not installed or no region is set."""
    try:
        from awscrt.auth import AwsCredentialsProvider  # noqa: PLC0415 - an extra
    except ImportError as error:
        problem = Problem(where="cloud-provider", what="awscrt is not installed", expected="pip install 'serving[aws]'")
        raise SettingsError([problem]) from error
    region = settings.aws_region or next(filter(None, map(os.environ.get, _REGION_VARIABLES)), "")
    if not region:
        expected = f"a region as eu-west-1, here or in {_REGION_VARIABLES[0]}"
        raise SettingsError([Problem(where="aws-region", what="is missing", expected=expected)])
    timeout = aiohttp.ClientTimeout(total=settings.cloud_timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        yield AwsApis(
            session,
            AwsCredentialsProvider.new_default_chain(),
            region=region,
            endpoint_url=settings.aws_endpoint_url,
            role_arn=settings.aws_assume_role_arn,
        )


def numbered(name: str, values: Sequence[str]) -> dict[str, str]:
    """A list as parameters: ``name.1``, ``name.2``."""
    return {f"{name}.{index}": value for index, value in enumerate(values, start=1)}


def text_of(element: "Element", path: str) -> str:
    """The text of a descendant element in any namespace; "" if the element is missing."""
    return element.findtext("{*}" + path, default="")


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _parsed(action: str, status: int, body: bytes) -> "Element":
    from xml.etree.ElementTree import ParseError, XMLParser  # noqa: PLC0415 - with this cloud only

    parser: Any = XMLParser()  # noqa: S314 - of the endpoint that the operator set
    try:
        parser.feed(body)
        root: Element = parser.close()
    except ParseError as error:
        raise CloudUnavailable(f"AWS: {action}: status {status} without XML") from error
    if status == 200:
        return root
    code = root.findtext(".//{*}Error/{*}Code", default=str(status))
    text = f"AWS: {action}: {code}: {root.findtext('.//{*}Error/{*}Message', default='')}"
    is_busy = status >= 500 or code.startswith(_BUSY_CODES)
    raise CloudUnavailable(text) if is_busy else CloudRefused(text)
