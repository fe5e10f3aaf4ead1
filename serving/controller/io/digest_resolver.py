"""Requests the digests of a revision's images from registries, with the pull secrets of revision and service account.

Each waiting revision has one task. A failure is reported, and the request is retried with growing pauses. The number of
simultaneous requests is bounded. Without the right to read Secrets (the component pull-secrets of config/), requests
have no credentials.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp

from serving.controller.revisions.digests import Resolution
from serving.core.model.errors import ClusterError, InvalidValue
from serving.core.model.imagereference import parse_reference
from serving.core.model.objects import Key, Object, name_of, namespace_of, nested, uid_of
from serving.core.model.pullsecrets import auth_for, auths_of
from serving.core.settings.controller import ControllerSettings
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.kinds import SECRET, SERVICE_ACCOUNT
from serving.net.cluster.port import Cluster
from serving.net.cluster.registry import RegistryError, digest_of, registry_session

_log = logging.getLogger(__name__)

# Revisions resolved in parallel, as in Knative.
_ASKING_MAX = 100
_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 300.0


class DigestResolver:
    """Resolves image tags of revisions to digests.

    ``resolved`` is called with a revision, its uid and the registries' responses.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: Callable[[], ControllerSettings],
        resolved: Callable[[Key, str, Resolution], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._resolved = resolved
        self._waiting: dict[Key, tuple[str, asyncio.Task[None]]] = {}
        self._slots = asyncio.Semaphore(_ASKING_MAX)
        self._group: SupervisedTasks | None = None
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Query registries until cancelled."""
        async with registry_session() as self._session, supervise() as self._group:
            await asyncio.Event().wait()

    def start(self, revision: Object, images: Sequence[str]) -> None:
        """Query the digests of a revision's images until they are known."""
        key, uid = (namespace_of(revision), name_of(revision)), uid_of(revision)
        if self._group is None or self._waiting.get(key, ("", None))[0] == uid:
            return
        self.forget(key)
        task = self._group.start(self._resolve(revision, images), name=f"resolve-{'/'.join(key)}")
        self._waiting[key] = (uid, task)

    def forget(self, revision: Key) -> None:
        """Stop the queries for a revision."""
        if waiting := self._waiting.pop(revision, None):
            waiting[1].cancel()

    async def _resolve(self, revision: Object, images: Sequence[str]) -> None:
        key, delay_s = (namespace_of(revision), name_of(revision)), _RETRY_FIRST_S
        while True:
            async with self._slots:
                resolution = await self._resolution(revision, images)
            self._resolved(key, uid_of(revision), resolution)
            if not resolution.failure:
                return
            _log.warning("controller.digest_failed", extra={"revision": "/".join(key), "error": resolution.failure})
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)

    async def _resolution(self, revision: Object, images: Sequence[str]) -> Resolution:
        digests: dict[str, str] = {}
        refused: list[str] = []
        auths = await self._auths(revision)
        for image in images:
            try:
                digests[image] = await self._digest(image, auths)
            except RegistryError as error:
                if not error.is_refusal:
                    why = f'Unable to fetch image "{image}": failed to resolve image to digest: {error}'
                    return Resolution(failure=why)
                digests[image] = ""
                refused.append(f"The tag of {image} is not resolved to a digest, nodes pull the tag: {error}")
        return Resolution(images=digests, refused="; ".join(refused))

    async def _digest(self, image: str, auths: dict[str, str]) -> str:
        assert self._session is not None
        reference = parse_reference(image)
        wait_s = self._settings().digest_resolution_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                digest = await digest_of(self._session, reference, auth=auth_for(reference, auths))
        except TimeoutError as error:
            raise RegistryError(f"{reference.registry} has not answered within {wait_s:g} s") from error
        return reference.pinned(digest)

    async def _auths(self, revision: Object) -> dict[str, str]:
        """The registry credentials of a revision's pods. Unreadable ones are ignored, as by a kubelet."""
        namespace = namespace_of(revision)
        references = list(nested(revision, "spec", "imagePullSecrets") or ())
        auths: dict[str, str] = {}
        if not references:
            try:
                account = nested(revision, "spec", "serviceAccountName") or "default"
                references = (await self._cluster.get(SERVICE_ACCOUNT, namespace, account)).get(
                    "imagePullSecrets"
                ) or []
            except ClusterError as error:
                _log.debug("controller.account_unread", extra={"namespace": namespace, "error": str(error)})
        for reference in references:
            try:
                secret = await self._cluster.get(SECRET, namespace, reference.get("name", ""))
                auths = {**auths_of([secret]), **auths}
            except (ClusterError, InvalidValue) as error:
                _log.warning("controller.pull_secret_unread", extra={"namespace": namespace, "error": str(error)})
        return auths
