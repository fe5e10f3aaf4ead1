import pytest

from serving.activator import ways as module
from serving.activator.revisions import PodFacts, RevisionFacts, ServingState
from serving.activator.routes import RevisionKey
from serving.activator.ways import Ways
from serving.settings.activator import SECRETS_OF_PODS, SECRETS_OF_REVISIONS, ActivatorSettings
from serving.wire.tokens import pod_secret, revision_secret

KEY = b"k" * 32
REVISION = ("default", "hello-00001")


def revision(uid: str = "u") -> RevisionFacts:
    return RevisionFacts(key=REVISION, resource_version="1", serving_state=ServingState.ACTIVE, uid=uid)


def pod(address: str = "10.0.0.1:8012", name: str = "p") -> PodFacts:
    return PodFacts(address=address, namespace="default", name=name)


def ways(settings: ActivatorSettings | None = None, facts: RevisionFacts | None = None) -> Ways:
    def facts_of(_: RevisionKey) -> RevisionFacts | None:
        return facts

    return Ways(settings or ActivatorSettings(), key=KEY, facts_of=facts_of)


OF_PODS = ActivatorSettings(secrets_of=SECRETS_OF_PODS)
OF_REVISIONS = ActivatorSettings(secrets_of=SECRETS_OF_REVISIONS)


@pytest.mark.parametrize(
    ("settings", "facts", "name", "secret"),
    [
        (OF_PODS, None, "p", pod_secret(KEY, namespace="default", pod="p")),
        (OF_PODS, None, "", ""),
        (OF_REVISIONS, revision(), "p", revision_secret(KEY, namespace="default", uid="u")),
        (OF_REVISIONS, revision(""), "p", ""),
        (OF_REVISIONS, None, "p", ""),
    ],
)
def test_a_pod_is_told_who_we_are_and_what_it_believes_us_by(
    settings: ActivatorSettings, facts: RevisionFacts | None, name: str, secret: str
) -> None:
    lines = ways(settings, facts).to(pod(name=name), REVISION).extra.decode()
    expected = f"K-Pod-Secret: {secret}\r\n" if secret else ""
    assert lines == f"K-Proxy-Request: activator\r\n{expected}"


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
    settings = ActivatorSettings(pod_address_override=override)
    assert ways(settings).to(pod(address), REVISION).address == expected


def test_a_way_is_kept_until_another_pod_has_the_address() -> None:
    known = ways()
    first = known.to(pod(), REVISION)
    assert known.to(pod(), REVISION) is first
    second = known.to(pod(name="q"), REVISION)
    assert (second.pod.name, second.extra == first.extra) == ("q", False)
    assert repr(known) == "Ways(1 pods)"


def test_ways_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAYS_MAX", 2)
    known = ways()
    for number in range(3):
        known.to(pod(f"10.0.0.{number}:1"), REVISION)
    assert repr(known) == "Ways(1 pods)"
