"""How many pods a revision starts with."""

import pytest

from serving.controller.revisions.scaling import start_scale
from serving.settings.autoscaler import AutoscalerSettings

GROUP = "autoscaling.knative.dev/"


@pytest.mark.parametrize(
    ("annotations", "start_count"),
    [
        ({}, 1),
        ({"initial-scale": "4"}, 4),
        ({"min-scale": "3"}, 3),
        ({"minScale": "3", "initial-scale": "5"}, 5),
        ({"initial-scale": "5", "max-scale": "2"}, 2),
        ({"initial-scale": "many"}, 1),
    ],
)
def test_a_revision_starts_with_what_it_asks_for(annotations: dict[str, str], start_count: int) -> None:
    asked = {GROUP + key: value for key, value in annotations.items()}
    assert start_scale(asked, AutoscalerSettings()).start_count == start_count


def test_without_a_limit_the_start_is_as_large_as_asked() -> None:
    settings = AutoscalerSettings(max_scale_limit=0)
    assert start_scale({GROUP + "initial-scale": "5000"}, settings).start_count == 5000


def test_settings_hold_where_a_revision_says_nothing() -> None:
    settings = AutoscalerSettings(initial_scale=0, allow_zero_initial_scale=True, min_scale=0, max_scale=7)
    found = start_scale({}, settings)
    assert (found.start_count, found.min_count, found.progress_deadline_s) == (0, 0, 600)


def test_a_revision_may_have_its_own_deadline() -> None:
    asked = {"serving.knative.dev/progress-deadline": "30s"}
    assert start_scale(asked, AutoscalerSettings()).progress_deadline_s == 30
