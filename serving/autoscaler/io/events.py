"""Writes Events about changes of scale, without delaying decisions."""

import asyncio
import logging
from typing import Any

import msgspec

from serving.autoscaler.io.sharing import Sharing
from serving.core.model.errors import AlreadyExists, ClusterError, NotFound
from serving.core.model.event import OOM_KILLED_REASON, SCALED_REASON, About, EventText, new_event
from serving.core.model.knative import OWN_API_VERSION, SERVING_API_VERSION, RevisionKey
from serving.core.model.scaledworkload import KIND
from serving.core.scaling.revision import Group, ScaledPod, ScaledRevision, group_of
from serving.net.aio.clock import now_s, stamp
from serving.net.cluster.kinds import EVENT
from serving.net.cluster.port import Cluster, Create, Replace

_COMPONENT = "serving-autoscaler"
_BURST = 5
_REFILL_S = 30.0
# Events kept per revision; later ones overwrite the oldest, because a single machine's store keeps all Events.
_NUMBERS = 20

_log = logging.getLogger("autoscaler")

# Most Events waiting to be written; more are changes of hundreds of revisions in one second.
_EVENTS_WAITING_MAX = 500
# Delay of Events, in seconds: requests wait for the scale and for its first pod, which are written first.
_LAG_S = 0.1


class EventPermit(msgspec.Struct, frozen=True, kw_only=True):
    """The permit for an Event: its number, and the number of changes omitted before.

    ``is_repeated``: an earlier Event has this number.
    """

    number: int
    left_out_count: int
    is_repeated: bool = False


class _Purse(msgspec.Struct, frozen=True, kw_only=True):
    tokens: float
    at_s: float
    count: int = 0
    left_out_count: int = 0


class EventBudget:
    """The event budget of each revision."""

    __slots__ = ("_purses",)

    def __init__(self) -> None:
        self._purses: dict[str, _Purse] = {}

    def acquire(self, uid: str, now_s: float) -> EventPermit | None:
        """The permit for the next Event of a revision; None above the limit."""
        purse = self._purses.get(uid) or _Purse(tokens=_BURST, at_s=now_s)
        tokens = min(_BURST, purse.tokens + (now_s - purse.at_s) / _REFILL_S)
        if tokens < 1:
            left_out_count = purse.left_out_count + 1
            self._purses[uid] = msgspec.structs.replace(purse, tokens=tokens, at_s=now_s, left_out_count=left_out_count)
            return None
        self._purses[uid] = _Purse(tokens=tokens - 1, at_s=now_s, count=purse.count + 1)
        return EventPermit(
            number=purse.count % _NUMBERS,
            left_out_count=purse.left_out_count,
            is_repeated=purse.count >= _NUMBERS,
        )

    def forget(self, uid: str) -> None:
        """Drop the budget of a revision."""
        self._purses.pop(uid, None)


def scale_event(
    revision: ScaledRevision, sentence: str, *, permit: EventPermit, now: str, reason: str = SCALED_REASON
) -> dict[str, Any]:
    """The Event of a change of scale, or of another ``reason``; ``now`` is a timestamp of the API."""
    namespace, name = revision.key
    about = About(
        api_version=OWN_API_VERSION if revision.is_workload else SERVING_API_VERSION,
        kind=KIND if revision.is_workload else "Revision",
        namespace=namespace,
        name=name,
        uid=revision.uid,
        resource_version=revision.resource_version,
    )
    more = f" (changes left out before it: {permit.left_out_count})" if permit.left_out_count else ""
    words = EventText(reason=reason, message=f"{sentence}{more}", is_warning=reason != SCALED_REASON)
    return new_event(about, words, suffix=f"scaled-{permit.number}", component=_COMPONENT, now=now)


def kill_sentence(pod: ScaledPod) -> str:
    """The message of an OOM kill: the pod, and the number of its kills."""
    count = pod.oom_kill_count
    times = "" if count == 1 else f" {count} times"
    return f"pod {pod.name} was killed{times}: it used more memory than its limit"


class WaitingEvent(msgspec.Struct, kw_only=True):
    """An Event of a revision, to be written at ``due_s`` or by the next write of its scale.

    ``is_repeated``: an Event with its name exists, unless it has expired. ``is_claimed``: a caller of
    ``ScaleEventWriter.pop`` writes it.
    """

    key: RevisionKey
    due_s: float
    group: Group
    event: dict[str, Any]
    is_repeated: bool
    is_claimed: bool = False

    def write(self) -> Create | Replace:
        """The write that probably succeeds."""
        return (Replace if self.is_repeated else Create)(kind=EVENT, body=self.event)


class ScaleEventWriter:
    """Writes changes of scale and OOM kills as Events, one after the other. The caller runs it."""

    def __init__(self, cluster: Cluster, sharing: Sharing) -> None:
        self.left_out_count = 0
        self._cluster = cluster
        self._sharing = sharing
        self._budget = EventBudget()
        self._waiting: asyncio.Queue[WaitingEvent] = asyncio.Queue(_EVENTS_WAITING_MAX)
        self._of_revision: dict[RevisionKey, WaitingEvent] = {}

    def add(self, revision: ScaledRevision, sentence: str, *, reason: str = SCALED_REASON) -> None:
        """Queue an Event about a change of scale or another ``reason``.

        An Event above the limit per revision or in total is dropped.
        """
        permit = self._budget.acquire(revision.uid, now_s())
        if permit is None or self._waiting.full():
            self.left_out_count += 1
            return
        event = scale_event(revision, sentence, permit=permit, now=stamp(), reason=reason)
        waiting = WaitingEvent(
            key=revision.key,
            due_s=now_s() + _LAG_S,
            group=group_of(revision.key, revision),
            event=event,
            is_repeated=permit.is_repeated,
        )
        self._waiting.put_nowait(waiting)
        self._of_revision[revision.key] = waiting

    def pop(self, key: RevisionKey) -> WaitingEvent | None:
        """The last waiting Event of a revision, for a caller that writes it; None without one."""
        waiting = self._of_revision.pop(key, None)
        if waiting is not None:
            waiting.is_claimed = True
        return waiting

    def release(self, waiting: WaitingEvent) -> None:
        """Queue an Event again that its caller has not written."""
        if self._waiting.full():
            self.left_out_count += 1
        else:
            self._waiting.put_nowait(msgspec.structs.replace(waiting, is_claimed=False))

    def add_kill(self, revision: ScaledRevision, pod: ScaledPod) -> None:
        """Queue an Event about an OOM kill in a pod."""
        namespace, name = revision.key
        _log.warning("pod.out_of_memory", extra={"namespace": namespace, "revision": name, "pod": pod.name})
        self.add(revision, kill_sentence(pod), reason=OOM_KILLED_REASON)

    def forget(self, revision: ScaledRevision) -> None:
        """Drop the revision's event budget."""
        self._budget.forget(revision.uid)

    async def run(self) -> None:
        """Write Events until cancelled. A failed write is logged and dropped."""
        while True:
            waiting = await self._waiting.get()
            if not waiting.is_claimed:
                await asyncio.sleep(max(0.0, waiting.due_s - now_s()))
            if waiting.is_claimed:
                continue
            if self._of_revision.get(waiting.key) is waiting:
                del self._of_revision[waiting.key]
            try:
                with self._sharing.writing(waiting.group):
                    try:
                        await self._cluster.write(waiting.write())
                    except (AlreadyExists, NotFound):
                        waiting.is_repeated = not waiting.is_repeated
                        await self._cluster.write(waiting.write())
            except ClusterError as error:
                self.left_out_count += 1
                _log.debug("event.unwritten", extra={"error": str(error)})
