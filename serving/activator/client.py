"""What this activator holds, told to the autoscaler: each second, and at once when a request finds no pod."""

from collections.abc import Callable, Iterable
from urllib.parse import urlencode

from serving.activator.wake import Load
from serving.model.knative import RevisionKey
from serving.settings.activator import ActivatorSettings
from serving.wire.frames import ActivatorStats, RevisionStat, encode_activator_stats
from serving.wire.link import Link
from serving.wire.tokens import activator_token

__all__ = ["StatsClient"]

# Below the 1 MiB that a websocket server takes by default: a revision is some 200 bytes at most of 63-character names.
_REVISIONS_PER_FRAME = 2000


class StatsClient:
    """Tells one autoscaler over ``link``, which somebody runs. ``draw`` gives numbers from 0 to below 1, for its pauses.

    ``on_connected`` says that an autoscaler is there who has been told nothing.
    """

    def __init__(
        self,
        settings: ActivatorSettings,
        *,
        key: bytes,
        draw: Callable[[], float],
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        url = f"{settings.stats_url}?{urlencode({'activator': settings.name})}"
        token = activator_token(key, name=settings.name)
        # Some 64 frames are a second of pokes; a connection that is that far behind takes nothing.
        self.link = Link(url, token=lambda: token, draw=draw, on_connected=on_connected)

    def __repr__(self) -> str:
        return f"StatsClient({self.link})"

    def tell(self, loads: Iterable[tuple[RevisionKey, Load]]) -> None:
        """Send loads as soon as the connection takes them."""
        stats = [
            RevisionStat(
                namespace=namespace, revision=revision, concurrency=load.concurrency, request_count=load.request_count
            )
            for (namespace, revision), load in loads
        ]
        for start in range(0, len(stats), _REVISIONS_PER_FRAME):
            self.link.send(encode_activator_stats(ActivatorStats(stats=stats[start : start + _REVISIONS_PER_FRAME])))
