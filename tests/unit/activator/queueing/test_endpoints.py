import pytest

from serving.activator.queueing import endpoints as module
from serving.activator.queueing.endpoints import PodEndpoints
from serving.activator.queueing.slices import ServedPod
from serving.model.knative import RevisionKey

REVISION = ("default", "hello-00001")


def pod(address: str = "10.0.0.1:8012", name: str = "p") -> ServedPod:
    return ServedPod(address=address, namespace="default", name=name)


def ways(override: str = "") -> PodEndpoints:
    def lines_to(pod: ServedPod, revision: RevisionKey) -> bytes:
        return f"{revision[1]}/{pod.name}".encode()

    return PodEndpoints(override, lines_to=lines_to)


@pytest.mark.parametrize(
    ("address", "override", "expected"),
    [
        ("10.0.0.1:8012", "", ("10.0.0.1", 8012)),
        ("[fd00::1]:8012", "", ("fd00::1", 8012)),
        ("10.0.0.1:8012", "10.=127.", ("127.0.0.1", 8012)),
        ("11.0.0.1:8012", "10.=127.", ("11.0.0.1", 8012)),
    ],
)
def test_an_address_is_what_sockets_want(address: str, override: str, expected: tuple[str, int]) -> None:
    assert ways(override).to(pod(address), REVISION).address == expected


def test_a_way_is_kept_until_another_pod_has_the_address() -> None:
    known = ways()
    first = known.to(pod(), REVISION)
    assert first.lines == b"hello-00001/p"
    assert known.to(pod(), REVISION) is first
    assert known.to(pod(name="q"), REVISION).lines == b"hello-00001/q"
    assert repr(known) == "PodEndpoints(1 pods)"


def test_ways_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENDPOINTS_MAX", 2)
    known = ways()
    for number in range(3):
        known.to(pod(f"10.0.0.{number}:1"), REVISION)
    assert repr(known) == "PodEndpoints(1 pods)"
