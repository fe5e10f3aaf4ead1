"""Watches the ConfigMaps of the system namespace, and applies each change to the settings.

A daemon's main opens ``followed`` around its work. The context waits for the first list of the ConfigMaps, so that the
work starts with their settings, and watches them until the end. If the list is forbidden, the daemon starts with its
environment after some seconds. If the server does not respond, the daemon waits half a minute, because a wrong mode of
inner TLS would fail its peers' requests. Both are logged, and later changes are applied. Rejected settings are logged
here; the controller records them as an Event.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from serving.core.model.objects import Object
from serving.core.settings.live import AppliedConfigMap, LiveSettings, config_map_of
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import CONFIG_MAP
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector

_log = logging.getLogger(__name__)

# Longest wait after a refusal, in seconds: a right granted just before may not be in effect yet.
_REFUSED_WAIT_S = 5.0
# Longest wait for the first response, in seconds: a busy node takes ten.
_FIRST_WAIT_S = 30.0
Listener = Callable[[AppliedConfigMap, Object], None]


class ConfigMapWatch:
    """Watches the ConfigMaps of ``settings``. Created and run by ``followed``."""

    def __init__(self, cluster: Cluster, namespace: str, settings: Sequence[LiveSettings[Any]]) -> None:
        self.refused: dict[tuple[str, str], tuple[AppliedConfigMap, Object]] = {}
        """The last rejected content, by daemon and ConfigMap."""
        self._settings = settings
        self._listeners: list[Listener] = []
        self.reflector = Reflector(cluster, CONFIG_MAP, namespace, on_change=self._changed)

    @contextlib.contextmanager
    def reported_to(self, listener: Listener) -> Iterator[None]:
        """Call ``listener`` for each ConfigMap that changes a setting or is rejected, while the context is open."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def applied_by(self, apply: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Call ``apply``, which must not block, after each change of settings while the context is open."""

        def changed(applied: AppliedConfigMap, _: Object) -> None:
            if applied.changed:
                apply()

        return self.reported_to(changed)

    def _changed(self, change: CacheChange) -> None:
        is_gone = change.type is EventType.DELETED
        data = {} if is_gone else change.new.get("data") or {}
        for setting in self._settings:
            applied = setting.update(config_map_of(change.key[1], data))
            if applied is None:
                continue
            self.refused.pop((applied.daemon, applied.config_map), None)
            if applied.problems:
                self.refused[applied.daemon, applied.config_map] = (applied, change.new)
            if applied.problems or applied.unknown or applied.changed or applied.waiting:
                _log_applied(applied)
                for listener in list(self._listeners):
                    listener(applied, change.new)


@contextlib.asynccontextmanager
async def followed(
    cluster: Cluster, namespace: str, settings: Sequence[LiveSettings[Any]]
) -> AsyncIterator[ConfigMapWatch]:
    """Watch ConfigMaps in the background while the context is open.

    Entering the context waits for the first list, for a limited time.
    """
    watch = ConfigMapWatch(cluster, namespace, settings)
    async with supervise() as tasks:
        tasks.start_background(watch.reflector.run(), name="settings")
        try:
            async with asyncio.timeout(_FIRST_WAIT_S):
                await _listed(watch.reflector)
        except TimeoutError:
            _log.warning("settings.unseen", extra={"namespace": namespace, "is_refused": watch.reflector.is_forbidden})
        for setting in settings:
            setting.begin()
            if setting.ignored:
                _log.warning("settings.removed", extra={"problems": [str(problem) for problem in setting.ignored]})
        yield watch


async def _listed(reflector: Reflector) -> None:
    """Wait for the first list, for a shorter time if the server refuses it. Raises ``TimeoutError``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSED_WAIT_S):
            await reflector.synced.wait()
    if reflector.is_forbidden:
        raise TimeoutError
    await reflector.synced.wait()


def _log_applied(applied: AppliedConfigMap) -> None:
    extra = {"daemon": applied.daemon, "config_map": applied.config_map}
    if applied.unknown:
        _log.warning(
            "settings.unknown_keys", extra={**extra, "problems": [str(problem) for problem in applied.unknown]}
        )
    if applied.problems:
        _log.error("settings.refused", extra={**extra, "problems": [str(problem) for problem in applied.problems]})
        return
    if applied.changed:
        _log.info("settings.changed", extra={**extra, "fields": list(applied.changed)})
    if applied.waiting:
        _log.warning("settings.wait_for_restart", extra={**extra, "fields": list(applied.waiting)})
