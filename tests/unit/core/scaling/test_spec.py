import msgspec
import pytest

from serving.core.scaling.spec import panic_window_s
from serving.core.settings.autoscaler import ORIGINAL, SAFE


@pytest.mark.parametrize(
    ("stable_s", "ratio", "panic_s"),
    [
        (60, 0.1, 6),
        (15, 0.1, 2),
        (14, 0.1, 1),
        (6, 0.05, 1),
        (3600, 1, 3600),
        # 14.5 but for the last bit: 50 x 0.29 is 14.499999999999998.
        (50, 0.29, 15),
    ],
)
def test_panic_window_is_ratio_rounded_to_at_least_1_s(stable_s: float, ratio: float, panic_s: float) -> None:
    assert panic_window_s(stable_s, ratio) == panic_s


def test_default_has_no_quirk_and_original_all() -> None:
    assert set(msgspec.structs.asdict(SAFE).values()) == {False}
    assert set(msgspec.structs.asdict(ORIGINAL).values()) == {True}
