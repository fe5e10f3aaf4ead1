"""Serves actions for the token's holder: ``POST /actions/scale``, ``traffic``, ``rollback`` and ``wake``, in JSON.

Scale sets the bounds of a service's pods and traffic the shares of its revisions, as ``serving scale`` and
``serving traffic`` do. Rollback sends all traffic to an older revision, and ends a gradual rollout: a target that names
a revision takes no steps. Wake sends one GET / to the service through the activator, as a user's request would, and
reports the response and its duration. Each action is logged and becomes an Event of the service. Errors of the API come
back in its own words.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web

from serving.core.model.errors import UNREADABLE, ClusterError, Forbidden, ServingError
from serving.core.model.event import ROLLBACK_REASON, TRAFFIC_REASON, EventText, about, new_event
from serving.core.model.grants import Grant
from serving.core.model.knative import CONDITION_READY, SERVICE_LABEL
from serving.core.model.objects import Object, is_true, name_of
from serving.net.aio.clock import now_s, stamp, wall_s
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import EVENT, REVISION, SERVING_SERVICE
from serving.net.cluster.port import Cluster
from serving.net.cluster.servicepatch import (
    LATEST,
    TrafficRequest,
    desired_traffic,
    newest_first,
    rollback_target,
    scale_patch,
    shares_of,
    shares_text,
)
from serving.tools.dashboard.coldstarts import duration_text
from serving.tools.dashboard.gate import Gate
from serving.tools.dashboard.viewers import current_actor

_log = logging.getLogger("dashboard")

# A cold start may take this long, while the user watches the page.
_WAKE_WITHIN_S = 60.0
_COUNT_MAX = 10_000
_UNFOLLOWED = "newer revisions get traffic when you move it"

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class _WakeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    namespace: _Name
    service: _Name


class _ScaleRequest(_WakeRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds of a service's pods. None leaves a bound unchanged; 0 allows scale to zero, or removes the limit."""

    min: _Count | None = None
    max: _Count | None = None


class _TrafficRequest(_WakeRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Percentages by revision name; "@latest" is the newest ready revision."""

    shares: dict[str, _Percent]


class _RollbackRequest(_WakeRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The revision to roll back to; None is the revision before the newest one with traffic."""

    revision: _Name | None = None


_BODIES: Mapping[str, type[_WakeRequest]] = {
    "scale": _ScaleRequest,
    "traffic": _TrafficRequest,
    "rollback": _RollbackRequest,
    "wake": _WakeRequest,
}


class DashboardActions:
    """Executes actions of authorised users. ``activator_address`` is the host and port of the public listener."""

    def __init__(self, cluster: Cluster, gate: Gate, *, activator_address: str) -> None:
        self._cluster = cluster
        self._gate = gate
        self._activator_address = activator_address
        self._event_count = 0

    @property
    def is_open(self) -> bool:
        """Whether a token is configured."""
        return self._gate.is_open

    async def handle(self, request: web.Request) -> web.Response:
        """Execute one action. The JSON response has the text ``said`` after success, or ``error``."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        actor = current_actor()
        user = "" if actor is None else actor.user
        refused = self._gate.judge(headers, now_s=now_s(), user=None if actor is None else actor.user)
        name = request.match_info["action"]
        if refused is not None:
            _log.warning("action.refused", extra={"action": name, "why": refused.why, "peer": request.remote or ""})
            return _response(refused.status, error=refused.why)
        if name not in _BODIES:
            return _response(404, error=f"there is no action {name}; there are {', '.join(_BODIES)}")
        try:
            action = msgspec.json.decode(await request.read(), type=_BODIES[name])
            if actor is not None and not _may_act(actor, action.namespace):
                raise Forbidden(f"the user {actor.user} may not act in this namespace")
            message = await self._act(action)
        except ClusterError as error:
            return self._failed(name, error.status, str(error))
        except (ServingError, *UNREADABLE) as error:
            return self._failed(name, 400, str(error))
        except (aiohttp.ClientError, OSError) as error:
            # A timeout has an empty message.
            why = str(error) or type(error).__name__
            return self._failed(name, 502, f"no answer through the activator: {why}")
        _log.info("action.done", extra={"action": name, "peer": request.remote or "", "user": user, "said": message})
        return _response(200, said=message)

    def _failed(self, name: str, status: int, why: str) -> web.Response:
        _log.warning("action.failed", extra={"action": name, "error": why})
        return _response(status, error=why)

    async def _act(self, action: _WakeRequest) -> str:
        service = await self._cluster.get(SERVING_SERVICE, action.namespace, action.service)
        if isinstance(action, _ScaleRequest):
            reason, message = "ScaleAsked", await self._scale(service, action)
        elif isinstance(action, _TrafficRequest):
            reason, message = TRAFFIC_REASON, await self._traffic(service, action)
        elif isinstance(action, _RollbackRequest):
            reason, message = ROLLBACK_REASON, await self._rollback(service, action)
        else:
            reason, message = "WakeAsked", await self._wake(service, action)
        actor = current_actor()
        by = f" by {actor.user}" if actor is not None and actor.user else ""
        await self._record_event(service, reason, f"requested in the dashboard{by}: {message}")
        return message

    async def _scale(self, service: Object, action: _ScaleRequest) -> str:
        if action.min is None and action.max is None:
            raise ServingError("nothing to change; expected min, max or both")
        bounds = {"min-scale": action.min, "max-scale": action.max}
        await self._patch(
            action, scale_patch(service, {key: str(bound) for key, bound in bounds.items() if bound is not None})
        )
        least = "" if action.min is None else f"at least {_pods(action.min)}"
        most = "" if action.max is None else f"at most {_pods(action.max)}" if action.max else "no limit of pods"
        return f"{action.service}: {', '.join(filter(None, (least, most)))}, as a new revision"

    async def _traffic(self, service: Object, action: _TrafficRequest) -> str:
        names = [name_of(revision) for revision in await self._revisions(action)]
        unknown = [share for share in action.shares if share != LATEST and share not in names]
        if unknown:
            are = ", ".join(names) or "none"
            raise ServingError(f"{action.service} has no revision {', '.join(unknown)}; there are {are}, and {LATEST}")
        targets = desired_traffic(service, TrafficRequest(shares=action.shares))
        await self._patch(action, {"spec": {"traffic": targets}})
        return (
            f"{action.service}: {shares_text(action.shares)}{'' if action.shares.get(LATEST) else f'; {_UNFOLLOWED}'}"
        )

    async def _rollback(self, service: Object, action: _RollbackRequest) -> str:
        revisions, before = await self._revisions(action), shares_of(service)
        name = action.revision or rollback_target(service, revisions)
        ready = [name_of(revision) for revision in revisions if is_true(revision, CONDITION_READY)]
        if name not in ready:
            are = ", ".join(ready) or "none"
            raise ServingError(f"{action.service} has no ready revision {name}; there are {are}")
        if before == {name: 100}:
            raise ServingError(f"{name} has all traffic already")
        targets = desired_traffic(service, TrafficRequest(shares={name: 100}))
        await self._patch(action, {"spec": {"traffic": targets}})
        left = ", ".join(f"{other} ({percent} %)" for other, percent in before.items() if other != name)
        return f"{action.service}: rolled back to {name} from {left or 'no revision'}; {_UNFOLLOWED}"

    async def _revisions(self, action: _WakeRequest) -> list[Object]:
        """The revisions of the service, newest first."""
        listing = await self._cluster.list(
            REVISION, action.namespace, label_selector=f"{SERVICE_LABEL}={action.service}"
        )
        return newest_first(listing.items)

    async def _patch(self, action: _WakeRequest, patch: Object) -> None:
        await self._cluster.patch(SERVING_SERVICE, action.namespace, action.service, patch=patch)

    async def _wake(self, service: Object, action: _WakeRequest) -> str:
        host = urlsplit(str((service.get("status") or {}).get("url", ""))).netloc
        if not host:
            raise ServingError(f"{action.service} has no address yet: its Route is not ready")
        limit = aiohttp.ClientTimeout(total=_WAKE_WITHIN_S)
        began_s = time.perf_counter()
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(
                f"http://{self._activator_address}/", headers={"Host": host}, allow_redirects=False
            ) as response,
        ):
            took_s = time.perf_counter() - began_s
            status = f"{response.status} {response.reason or ''}".rstrip()
            is_cold = response.headers.get("X-Serving-Cold-Start") == "true"
            who = response.headers.get("X-Serving-Revision") or action.service
        return f"{who} answered {status} in {duration_text(took_s)}{', a cold start' if is_cold else ''}"

    async def _record_event(self, service: Object, reason: str, message: str) -> None:
        """Record an Event of the service. If this fails, the action remains done."""
        try:
            async with asyncio.timeout(_WAKE_WITHIN_S):
                await self._cluster.create(EVENT, self._event(service, reason, message))
        except (ClusterError, TimeoutError) as error:
            _log.warning("action.event.lost", extra={"reason": reason, "error": str(error)})

    def _event(self, service: Object, reason: str, message: str) -> Object:
        self._event_count += 1
        return new_event(
            about(service),
            EventText(reason=reason, message=message),
            suffix=f"{int(wall_s() * 1000):x}-{self._event_count}",
            component="dashboard",
            now=stamp(),
        )


def _may_act(actor: Grant, namespace: str) -> bool:
    """Whether a user may act in a namespace, by the API server's rules.

    In the system's namespace only an admin of all namespaces may act.
    """
    return actor.may_act(namespace) and (actor.is_full or namespace != system_namespace())


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def _response(status: int, **body: str) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
