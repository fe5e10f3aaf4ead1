import pytest

from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.classic import ClassicSettings


def test_defaults_have_no_clash() -> None:
    assert list(AutoscalerSettings().check()) == []


@pytest.mark.parametrize(
    ("settings", "field", "what"),
    [
        (
            AutoscalerSettings(container_concurrency_target_default=0.01, container_concurrency_target_ratio=0.5),
            "container_concurrency_target_default",
            "the target after its percentage is 0.005",
        ),
        (
            AutoscalerSettings(initial_scale=0),
            "initial_scale",
            "initial-scale is 0 while allow-zero-initial-scale is false",
        ),
        (AutoscalerSettings(min_scale=3, max_scale=2), "min_scale", "min-scale 3 is above max-scale 2"),
        (AutoscalerSettings(max_scale=1001), "max_scale", "max-scale 1001 is above max-scale-limit 1000"),
        (AutoscalerSettings(min_scale=1001), "min_scale", "min-scale 1001 is above max-scale-limit 1000"),
        (
            AutoscalerSettings(classic=ClassicSettings(panic_window_s=61)),
            "classic.panic_window_s",
            "panic window of 61 s is longer than the stable window",
        ),
    ],
)
def test_clash_names_field_and_values(settings: AutoscalerSettings, field: str, what: str) -> None:
    (clash,) = settings.check()
    assert (clash.fields[0], clash.what) == (field, what)


def test_initial_scale_zero_is_valid_if_allowed() -> None:
    assert list(AutoscalerSettings(initial_scale=0, allow_zero_initial_scale=True).check()) == []


def test_max_scale_is_unbounded_without_limit() -> None:
    assert list(AutoscalerSettings(max_scale=5000, max_scale_limit=0).check()) == []
