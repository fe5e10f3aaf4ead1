"""Gradual rollout: moves the traffic of a configuration target from one revision to the next.

Input: the goal (each configuration target with its latest ready revision), the state before, which revisions can still
serve, and the time; output: the new state. A new revision starts with 1 percent. Once the activators route that
percent, ``observe_ready`` plans equal steps for the rest over the rollout duration. A step takes at least 1 s, and at
least as long as the activators needed for the first percent. A further revision that becomes ready during a rollout
starts with 1 percent immediately. Each step takes percents from the older revisions, from the newest to the oldest.
Targets that name a revision have no rollout.

Example: 100 percent over 10 s, with activators that need 1 s for the first percent. At most 10 steps are possible for
99 percent: steps of 10 percent every 1 s, 1 -> 11 -> ... -> 91 -> 100.

Follows the documented behaviour of Knative Serving 1.x ("Configuring gradual rollout of traffic to Revisions"). The
module uses no clock. ``now_s`` is in seconds since the epoch, because the state outlives the process.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from serving.controller.revisions.revision_status import serving_state_of
from serving.controller.values.conditions import Condition
from serving.core.model.knative import CONDITION_READY, ConditionStatus, ServingState
from serving.core.model.objects import Object, condition_of, is_being_deleted, nested
from serving.core.model.rollout import ConfigurationRollout, RevisionShare, Rollout, StepParameters

ALL_TRAFFIC_ASSIGNED = "AllTrafficAssigned"

_NS = 1_000_000_000
_ALL_PERCENT = 100
_FIRST_PERCENT = 1
_STEP_MIN_S = 1


class RouteTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The configurations and revisions that a route references, by name."""

    configurations: Mapping[str, Object]
    revisions: Mapping[str, Object]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Targets with their revisions, without URLs. They are None if ``condition`` states a problem."""

    targets: list[Object] | None
    condition: Condition


def assign(targets: Sequence[Object], known: RouteTargets) -> Assignment:
    """Assign a revision to every target, or report the first target without one."""
    assigned: list[Object] = []
    for target in targets:
        outcome = _to_configuration(target, known) if target.get("configurationName") else _to_revision(target, known)
        if isinstance(outcome, Condition):
            return Assignment(targets=None, condition=outcome)
        assigned.append(outcome)
    return Assignment(targets=assigned, condition=Condition(type=ALL_TRAFFIC_ASSIGNED, status=ConditionStatus.TRUE))


def can_serve(revision: Object | None) -> bool:
    """Whether a revision exists and is not being deleted."""
    return (
        revision is not None
        and not is_being_deleted(revision)
        and serving_state_of(revision) is not ServingState.RETIRED
    )


def _to_configuration(target: Object, known: RouteTargets) -> Object | Condition:
    name = target["configurationName"]
    configuration = known.configurations.get(name)
    if configuration is None or is_being_deleted(configuration):
        return _missing("Configuration", name)
    revision = nested(configuration, "status", "latestReadyRevisionName")
    if revision:
        return _target(target, revision, latest=True)
    if condition_of(configuration, CONDITION_READY).get("status") == ConditionStatus.FALSE:
        return _not_assigned(ConditionStatus.FALSE, f'Configuration "{name}" does not have any ready Revision.')
    return _not_assigned(ConditionStatus.UNKNOWN, f'Configuration "{name}" is waiting for a Revision to become ready.')


def _to_revision(target: Object, known: RouteTargets) -> Object | Condition:
    name = target.get("revisionName", "")
    revision = known.revisions.get(name)
    if not can_serve(revision):
        return _missing("Revision", name)
    status = condition_of(revision or {}, CONDITION_READY).get("status")
    if status == ConditionStatus.TRUE:
        return _target(target, name, latest=False)
    if status == ConditionStatus.FALSE:
        return _not_assigned(ConditionStatus.FALSE, f'Revision "{name}" failed to become ready.')
    return _not_assigned(ConditionStatus.UNKNOWN, f'Revision "{name}" is not yet ready.')


def _target(target: Object, revision: str, *, latest: bool) -> Object:
    assigned: Object = {"revisionName": revision, "latestRevision": latest}
    return assigned | {key: target[key] for key in ("percent", "tag") if target.get(key) is not None}


def _missing(kind: str, name: str) -> Condition:
    message = f'{kind} "{name}" referenced in traffic not found.'
    return Condition(type=ALL_TRAFFIC_ASSIGNED, status=ConditionStatus.FALSE, reason=f"{kind}Missing", message=message)


def _not_assigned(status: ConditionStatus, message: str) -> Condition:
    return Condition(type=ALL_TRAFFIC_ASSIGNED, status=status, reason="RevisionMissing", message=message)


def rollout_goal(targets: Sequence[Object], assigned: Sequence[Object]) -> Rollout:
    """The goal of a rollout: all traffic of each configuration target on its latest revision.

    ``targets`` is the Route's ``spec.traffic``, ``assigned`` the same targets with a revision each.
    """
    percents: dict[tuple[str, str], int] = {}
    latest: dict[tuple[str, str], str] = {}
    for target, assignment in zip(targets, assigned, strict=True):
        name = target.get("configurationName")
        if not name:
            continue
        key = ("", name)
        if target.get("percent"):
            percents[key] = percents.get(key, 0) + target["percent"]
            latest[key] = assignment["revisionName"]
        if target.get("tag"):
            key = (target["tag"], name)
            percents[key], latest[key] = _ALL_PERCENT, assignment["revisionName"]
    return Rollout(
        configurations=tuple(
            _at_rest(ConfigurationRollout(configuration_name=name, tag=tag, percent=percents[tag, name]), revision)
            for (tag, name), revision in sorted(latest.items())
        )
    )


def rollout_of_status(
    targets: Sequence[Object], served: Iterable[Object], *, configurations: Mapping[str, str]
) -> Rollout:
    """The rollout state of a Route without a stored one: each configuration target has its share of ``status.traffic``.

    No step is planned, because such a Route had no rollout duration. ``configurations`` maps revisions' names to their
    configurations.
    """
    present = {
        (target.get("tag"), configurations.get(target["revisionName"])): target
        for target in served
        if target.get("latestRevision")
    }
    keys = [(target.get("tag"), target.get("configurationName")) for target in targets]
    pairs = [(target, present[key]) for target, key in zip(targets, keys, strict=True) if key[1] and key in present]
    return rollout_goal([target for target, _ in pairs], [served_target for _, served_target in pairs])


def advance(
    goal: Rollout,
    before: Rollout,
    *,
    can_serve: Callable[[str], bool],
    now_s: float,
    paused: Collection[str] = (),
    broken: Collection[str] = (),
) -> Rollout:
    """The state at ``now_s``, after due steps. New revisions start with 1 percent.

    Revisions in ``paused`` get no further step. Revisions in ``broken`` get no traffic if an older revision can serve.
    """
    known = {
        (configuration.tag, configuration.configuration_name): configuration for configuration in before.configurations
    }
    states = []
    for configuration in goal.configurations:
        latest, last = (
            configuration.revisions[-1].revision_name,
            known.get((configuration.tag, configuration.configuration_name)),
        )
        rolled_back = _rolled_back(configuration, last, can_serve) if latest in broken else None
        states.append(
            rolled_back or _advanced(configuration, last, can_serve, now_ns=int(now_s * _NS), is_held=latest in paused)
        )
    return Rollout(configurations=tuple(states))


def observe_ready(rollout: Rollout, *, duration_s: float, now_s: float) -> Rollout:
    """Plan the steps of each rollout that has none yet, for a duration of ``duration_s`` seconds.

    Called when activators serve the first percent of the new revisions.
    """
    return Rollout(
        configurations=tuple(
            configuration
            if configuration.is_done or configuration.step_params.step_duration_ns
            else _planned(configuration, duration_s, now_s)
            for configuration in rollout.configurations
        )
    )


def next_step_s(rollout: Rollout) -> float | None:
    """The time of the next step, in seconds since the epoch; None without a planned step."""
    due = [
        configuration.step_params.next_step_time_ns
        for configuration in rollout.configurations
        if not configuration.is_done
    ]
    return min((at_ns / _NS for at_ns in due if at_ns), default=None)


def newest_of(rollout: Rollout) -> list[str]:
    """The newest revision of each target whose traffic is split between revisions."""
    return [
        configuration.revisions[-1].revision_name
        for configuration in rollout.configurations
        if not configuration.is_done
    ]


def split_targets(targets: Sequence[Object], assigned: Sequence[Object], rollout: Rollout) -> list[Object]:
    """The targets in the form of ``status.traffic`` during a rollout: an entry per revision with a share.

    ``latestRevision`` is true for the newest revision only. If two targets name one configuration, the first target
    gets the shares of the older revisions.
    """
    pools = {
        configuration.configuration_name: list(configuration.revisions)
        for configuration in rollout.configurations
        if not configuration.tag
    }
    entries: list[Object] = []
    for target, assignment in zip(targets, assigned, strict=True):
        pool = pools.get(target.get("configurationName", ""))
        if not pool or not assignment.get("percent"):
            entries.append(assignment)
            continue
        for name, percent in _drawn(pool, assignment["percent"]):
            entries.append(
                {
                    **assignment,
                    "revisionName": name,
                    "percent": percent,
                    "latestRevision": name == assignment["revisionName"],
                }
            )
    return entries


def _drawn(pool: list[RevisionShare], percent: int) -> Iterable[tuple[str, int]]:
    while percent and pool:
        share = pool.pop(0)
        part = min(percent, share.percent)
        percent -= part
        if part < share.percent:
            pool.insert(0, msgspec.structs.replace(share, percent=share.percent - part))
        yield share.revision_name, part


def _at_rest(configuration: ConfigurationRollout, revision: str) -> ConfigurationRollout:
    share = RevisionShare(revision_name=revision, percent=configuration.percent)
    return msgspec.structs.replace(configuration, revisions=(share,), step_params=StepParameters())


def _rolled_back(
    goal: ConfigurationRollout, before: ConfigurationRollout | None, can_serve: Callable[[str], bool]
) -> ConfigurationRollout | None:
    """The rollout with all traffic on older revisions; None if none of them can serve."""
    latest = goal.revisions[-1].revision_name
    shares = {
        revision.revision_name: revision.percent
        for revision in (before.revisions if before else ())
        if revision.percent
    }
    older = {name: percent for name, percent in shares.items() if name != latest and can_serve(name)}
    return _with_shares(goal, _resized(older, goal.percent), StepParameters()) if older else None


def _advanced(
    goal: ConfigurationRollout,
    before: ConfigurationRollout | None,
    can_serve: Callable[[str], bool],
    *,
    now_ns: int,
    is_held: bool,
) -> ConfigurationRollout:
    latest = goal.revisions[-1].revision_name
    shares = {
        revision.revision_name: revision.percent
        for revision in (before.revisions if before else ())
        if revision.percent and (revision.revision_name == latest or can_serve(revision.revision_name))
    }
    if before is None or not shares or goal.percent <= _FIRST_PERCENT:
        return goal
    shares = _resized(shares, goal.percent)
    if next(reversed(shares)) != latest:
        started = StepParameters(start_time_ns=now_ns)
        return _with_shares(goal, _started(shares, latest), started)
    step = before.step_params
    is_due = step.next_step_time_ns and step.next_step_time_ns <= now_ns and not is_held
    if len(shares) == 1 or not is_due:
        return _with_shares(goal, shares, step)
    moved = _moved(shares, latest, step.step_size)
    following = msgspec.structs.replace(step, next_step_time_ns=now_ns + step.step_duration_ns)
    return _with_shares(goal, moved, following)


def _with_shares(goal: ConfigurationRollout, shares: Mapping[str, int], step: StepParameters) -> ConfigurationRollout:
    revisions = tuple(RevisionShare(revision_name=name, percent=percent) for name, percent in shares.items())
    after = msgspec.structs.replace(goal, revisions=revisions, step_params=step)
    return msgspec.structs.replace(after, step_params=StepParameters()) if after.is_done else after


def _resized(shares: dict[str, int], percent: int) -> dict[str, int]:
    """The shares with the sum ``percent``: the newest revision gets more, or the oldest ones lose some first."""
    excess = sum(shares.values()) - percent
    remaining: dict[str, int] = {}
    for name, share in shares.items():
        taken = min(share, max(excess, 0))
        excess -= taken
        if share > taken:
            remaining[name] = share - taken
    newest = next(reversed(shares))
    return {**remaining, newest: remaining.get(newest, 0) - excess} if excess else remaining


def _started(shares: dict[str, int], latest: str) -> dict[str, int]:
    """The shares with the latest revision last. It keeps its percent, or takes 1 percent from the other revisions."""
    others = {name: share for name, share in shares.items() if name != latest}
    if latest in shares:
        return {**others, latest: shares[latest]}
    return _moved({**others, latest: 0}, latest, _FIRST_PERCENT)


def _moved(shares: dict[str, int], latest: str, percent: int) -> dict[str, int]:
    """Move ``percent`` to the latest revision from the others, starting with the newest of them."""
    after = dict(shares)
    for name in reversed(shares):
        if name == latest:
            continue
        part = min(after[name], percent)
        percent -= part
        after[name] -= part
        after[latest] += part
    return {name: share for name, share in after.items() if share}


def _planned(configuration: ConfigurationRollout, duration_s: float, now_s: float) -> ConfigurationRollout:
    waited_s = math.ceil(now_s - configuration.step_params.start_time_ns / _NS)
    step_min_s = max(_STEP_MIN_S, waited_s)
    remaining = configuration.percent - configuration.revisions[-1].percent
    step_size = math.ceil(remaining / min(max(int(duration_s // step_min_s), 1), remaining))
    duration_ns = int(duration_s * _NS) // math.ceil(remaining / step_size)
    step = StepParameters(
        start_time_ns=configuration.step_params.start_time_ns,
        next_step_time_ns=int(now_s * _NS) + duration_ns,
        step_duration_ns=duration_ns,
        step_size=step_size,
    )
    return msgspec.structs.replace(configuration, step_params=step)
