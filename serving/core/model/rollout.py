"""The state of gradual rollouts of one Route, as Knative keeps it in an annotation.

A rollout belongs to a configuration and a tag; the tag "" is the Route's own host. Its revisions are ordered from the
oldest to the newest, and their percents sum to the percent of the configuration target. The JSON has Knative's field
names, so that a state of Knative Serving 1.x can be read. ``serving.controller.routes.rollout`` decides. Activators
read the splits of tags from this state, because ``status.traffic`` has only the split of the Route's own host.
"""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from serving.core.model.errors import UNREADABLE
from serving.core.model.knative import ROLLOUT_ANNOTATION

_ALL_PERCENT = 100

_LENGTH = 16


class RevisionShare(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A revision's percentage of the traffic to a route's host, or to the host of a tag."""

    revision_name: str
    percent: int


class StepParameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of a rollout, and the percentage that each step moves (``step_size``). 0 is unset.

    Start and next step are in nanoseconds since the epoch, the duration of a step is in nanoseconds.
    """

    start_time_ns: int = msgspec.field(default=0, name="starttime")
    next_step_time_ns: int = msgspec.field(default=0, name="nextStepTime")
    step_duration_ns: int = msgspec.field(default=0, name="stepDuration")
    step_size: int = msgspec.field(default=0, name="stepSize")


class ConfigurationRollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The rollout of a configuration on a route's host (``tag`` ""), or on the host of a tag.

    ``percent`` is the configuration's share of the traffic. A finished rollout has one revision.
    """

    configuration_name: str
    percent: int
    tag: str = ""
    revisions: tuple[RevisionShare, ...] = ()
    step_params: StepParameters = StepParameters()

    @property
    def is_done(self) -> bool:
        """Whether the newest revision receives all traffic of the configuration."""
        return len(self.revisions) <= 1


class Rollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All rollouts of a Route, ordered by tag and configuration."""

    configurations: tuple[ConfigurationRollout, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether all rollouts are finished."""
        return all(configuration.is_done for configuration in self.configurations)


_DECODER = msgspec.json.Decoder(Rollout)


def read_rollout(annotations: Mapping[str, str]) -> Rollout:
    """Read the state from a Route's annotations; empty if it is missing or inconsistent."""
    text = annotations.get(ROLLOUT_ANNOTATION)
    if not text:
        return Rollout()
    try:
        rollout = _DECODER.decode(text)
    except UNREADABLE:
        return Rollout()
    return rollout if all(map(_is_consistent, rollout.configurations)) else Rollout()


def write_rollout(rollout: Rollout) -> str:
    """The value of ``ROLLOUT_ANNOTATION``, as JSON."""
    return msgspec.json.encode(rollout).decode()


def tag_splits(annotations: Mapping[str, str]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Revisions and percents by tag, for each tag in a rollout; the percents of a tag sum to 100."""
    if ROLLOUT_ANNOTATION not in annotations:
        return {}
    return {
        configuration.tag: tuple((share.revision_name, share.percent) for share in configuration.revisions)
        for configuration in read_rollout(annotations).configurations
        if configuration.tag and not configuration.is_done
    }


def _is_consistent(rollout: ConfigurationRollout) -> bool:
    shares = [share.percent for share in rollout.revisions]
    return (
        0 <= rollout.percent <= _ALL_PERCENT
        and all(share >= 0 for share in shares)
        and sum(shares) == rollout.percent
        and (not rollout.tag or rollout.percent == _ALL_PERCENT)
    )


def split_digest(shares: Iterable[tuple[str, int]]) -> str:
    """A digest of revisions and percents, 16 hexadecimal digits, independent of order and repetition."""
    sums: dict[str, int] = {}
    for revision, percent in shares:
        sums[revision] = sums.get(revision, 0) + percent
    text = ",".join(f"{revision}={percent}" for revision, percent in sorted(sums.items()) if percent)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
