import pytest

from serving.home.pods.unready import ObservedContainer, Unready, explain, with_log


@pytest.mark.parametrize(
    ("ports", "reason", "message"),
    [
        (
            [3000],
            "WrongPort",
            "listens on port 3000 and was given PORT=20123; it must listen on $PORT (or deploy it with --fixed-port)",
        ),
        ([9, 8, 7, 6, 5, 4], "WrongPort", "listens on ports 4, 5, 6, 7, 8 and 1 more and was given PORT=20123"),
        ([], "NotListening", "does not listen yet; it was given PORT=20123"),
    ],
)
def test_wrong_or_missing_listening_port_is_reported(ports: list[int], reason: str, message: str) -> None:
    unready = explain(ObservedContainer(container="app", port=20123, ports=ports))
    assert unready is not None
    assert (unready.reason, message in unready.message) == (reason, True)


def test_fixed_port_app_is_not_advised_to_use_fixed_port() -> None:
    unready = explain(ObservedContainer(container="app", port=3000, ports=[5000], port_option="--fixed-port"))
    assert unready is not None
    assert unready.message == (
        "container app listens on port 5000 and was given PORT=3000; it must listen on 3000, or --fixed-port must name the port on "
        "which it listens"
    )


def test_failed_readiness_probe_is_reported_with_its_error() -> None:
    unready = explain(
        ObservedContainer(
            container="app", port=20123, ports=[20123], probe="GET /health", probe_failure="the app answered 503"
        )
    )
    assert unready is not None
    assert unready.reason == "ReadinessProbeFailed"
    assert unready.message == "readiness probe of container app failed: GET /health: the app answered 503"


def test_listening_container_has_no_unready_reason() -> None:
    assert explain(ObservedContainer(container="app", port=20123, ports=[20123, 9000])) is None


def test_in_process_queue_proxy_must_listen_on_pod_address() -> None:
    unready = explain(ObservedContainer(container="app", port=8012, ports=[8012], host="127.64.0.9"))
    assert unready is not None
    assert unready.reason == "NoQueueProxy"
    assert "must listen on $HOST (127.64.0.9)" in unready.message


def test_message_quotes_the_log_if_not_empty() -> None:
    assert with_log("bad", " \n") == "bad"
    assert with_log("bad", "one\ntwo") == "bad; last lines of its log:\none\ntwo"


def test_foreign_listener_is_reported_as_port_taken() -> None:
    foreign = "port 20123 is held by user 1000, by a process that is not of this pod"
    for ports in ([], [3000]):
        unready = explain(ObservedContainer(container="app", port=20123, ports=ports, foreign=foreign))
        assert unready == Unready(reason="PortTaken", message=f"container app gets no requests: {foreign}")
