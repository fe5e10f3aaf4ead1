import pytest

from serving.cli.system.environmentcheck import check_environment
from serving.model.errors import SettingsError


def test_each_wrong_variable_is_named_with_its_value_and_what_would_be_right() -> None:
    with pytest.raises(SettingsError) as caught:
        check_environment(
            {
                "SERVING_CONTROLLER_PUBLIC_PORT": "abc",
                "SERVING_CONTROLLER_PUBLIC_PRT": "80",
                "SERVING_AUTOSCALER_STABLE_WINDOW_S": "soon",
                "SERVING_DASHBOARD_CONNECTIONS_MAX": "10",
            }
        )
    texts = sorted(str(one) for one in caught.value.problems)
    assert len(texts) == 3
    assert "SERVING_AUTOSCALER_STABLE_WINDOW_S" in texts[0]
    assert "'soon' is not right; expected a duration from 6s to 1h" in texts[0]
    assert "SERVING_CONTROLLER_PUBLIC_PORT: public_port: 'abc' is not right; expected a whole number" in texts[1]
    assert (
        "SERVING_CONTROLLER_PUBLIC_PRT: controller has no such setting; expected a known name; did you mean "
        "SERVING_CONTROLLER_PUBLIC_PORT?" in texts[2]
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PATH": "/bin", "SERVING_POD_NAME": "p", "SERVING_ACTIVATOR_COUNT": "2"},
        {"SERVING_AUTOSCALER_STABLE_WINDOW_S": "20"},
        # Its certificates come by a flag or a ConfigMap.
        {"SERVING_ACTIVATOR_HTTP_PROTOCOL": "Redirected"},
    ],
)
def test_what_daemons_can_use_passes(environment: dict[str, str]) -> None:
    check_environment(environment)
