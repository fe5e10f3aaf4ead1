"""The client of ``kubernetes.aio`` for one kubeconfig, or for the pod that this process runs in.

The library takes 0.45 s and 40 MiB to import. The first call imports it, in a thread.
"""

import asyncio
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from serving.cluster.sending import CheckedRequest
from serving.model.errors import Unavailable

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

# Watches and calls of a daemon at once: 15 kinds and bursts of /scale patches. The library's own bound is 100.
_CONNECTIONS_MAX = 256


async def settings_of(kubeconfig: str | None) -> "Configuration":
    """Address and credentials. Raises ``Unavailable`` when the kubeconfig cannot be used."""
    await asyncio.to_thread(_import_library)
    import yaml  # noqa: PLC0415 - the library has imported it by now
    from kubernetes.aio import client, config  # noqa: PLC0415 - 0.45 s, see the module docstring

    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call] # the library's own
        else:
            await config.load_kube_config(kubeconfig, client_configuration=settings, persist_config=False)  # type: ignore[no-untyped-call] # the library's own
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # The loader does not catch the errors of a malformed file.
        raise Unavailable(f"no usable kubeconfig in {kubeconfig or 'this pod'}: {error}") from error
    return settings


async def client_of(kubeconfig: str | None) -> "ApiClient":
    """A client that makes each call once. Raises ``Unavailable`` as above."""
    settings = await settings_of(kubeconfig)
    from kubernetes.aio import client  # noqa: PLC0415 - as above

    # None and not False: the library takes False for the number 0, and a client of 0 attempts never stops to try again.
    settings.retries = None
    settings.connection_pool_maxsize = _CONNECTIONS_MAX
    settings.client_session_kwargs = {"request_class": CheckedRequest}
    if _is_loopback(settings.host):
        # A proxy from the environment is for other hosts; it would get the token and could not reach loopback.
        settings.client_session_kwargs["trust_env"] = False
    return client.ApiClient(settings)


def _import_library() -> None:
    import kubernetes.aio.client  # noqa: PLC0415 - 0.45 s, see the module docstring
    import kubernetes.aio.config  # noqa: F401, PLC0415 - as above


def _is_loopback(host: str) -> bool:
    name = urlsplit(host).hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
