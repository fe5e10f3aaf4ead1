from serving.home.kubelet.restarts import RestartSettings, pause_after

SETTINGS = RestartSettings()


def test_pauses_double_up_to_a_bound() -> None:
    pauses, pause_s = [], None
    for _ in range(9):
        pause_s = pause_after(pause_s, lived_s=1, settings=SETTINGS)
        pauses.append(pause_s)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_one_that_lived_long_is_started_at_once() -> None:
    assert pause_after(60, lived_s=30, settings=SETTINGS) == 0
    assert pause_after(60, lived_s=29.9, settings=SETTINGS) == 60
