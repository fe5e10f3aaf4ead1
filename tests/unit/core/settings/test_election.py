"""Derived values of the settings of leader election."""

import pytest

from serving.core.settings.daemons import ELECTION
from serving.core.settings.election import ElectionSettings


def test_leader_election_is_off_by_default() -> None:
    assert list(ElectionSettings().check()) == []
    assert not ElectionSettings().enabled


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        (ElectionSettings(lease_duration_s=10.0), ("renew_deadline_s", "lease_duration_s")),
        (ElectionSettings(retry_period_s=10.0), ("retry_period_s", "renew_deadline_s")),
    ],
)
def test_retry_renew_and_lease_times_must_increase(settings: ElectionSettings, fields: tuple[str, str]) -> None:
    (clash,) = settings.check()
    assert clash.fields == fields
    assert clash.expected == "below 10s"


def test_keys_are_those_of_config_leader_election() -> None:
    keys = {field.knob.key: field.knob.config_map for field in ELECTION.fields()}
    assert {"lease-duration", "renew-deadline", "retry-period", "buckets"} <= keys.keys()
    assert set(keys.values()) == {"config-leader-election"}
