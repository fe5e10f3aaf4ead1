import pytest

from serving.queueproxy.wrongport import wrong_port

OWN = (8012, 8022)


@pytest.mark.parametrize(
    ("listening", "message"),
    [
        (set(), ""),
        ({8012, 8022}, ""),
        ({8012, 8022, 8080}, ""),
        ({8080, 9090}, ""),
        (
            {8012, 5000},
            "the app listens on 5000 and was given PORT=8080; it must listen on $PORT, or containerPort must name its port",
        ),
        (
            set(range(9000, 9007)),
            "the app listens on 9000, 9001, 9002, 9003, 9004 and 2 more and was given PORT=8080; it must listen on",
        ),
    ],
)
def test_app_that_listens_only_on_other_ports_is_reported(listening: set[int], message: str) -> None:
    text = wrong_port(listening, app_port=8080, own=OWN)
    assert text.startswith(message)
    assert bool(text) is bool(message)
    assert len(text) < 200, "a report has room for it"
