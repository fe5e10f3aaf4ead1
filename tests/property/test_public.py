"""For any order of events: an existing public slice is never empty, and contains only addresses that accept requests."""

from hypothesis import given
from hypothesis import strategies as st

from serving.controller.revisions.public import (
    ENDPOINTS_MAX,
    Activators,
    PublicService,
    pod_backends,
    public_writes,
    traffic_path_of,
)
from serving.core.model.knative import TRAFFIC_PATH_ANNOTATION
from serving.core.model.objects import Object, annotations_of
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Patch
from tests.unit.controller.builders import a_pod, a_revision, merged, stored

POD_COUNT, ACTIVATOR_COUNT = 4, 3
ACTIVATOR_PORT, QUEUE_PORT = 8081, 8012
KEY = ("knative-serving", "activators")

OPERATIONS = st.one_of(
    st.tuples(st.just("ready"), st.integers(1, POD_COUNT)),
    st.tuples(st.just("unready"), st.integers(1, POD_COUNT)),
    st.tuples(st.just("gone"), st.integers(1, POD_COUNT)),
    st.tuples(st.just("activators"), st.integers(0, ACTIVATOR_COUNT)),
    st.tuples(st.just("path"), st.sampled_from(["serve", "proxy"])),
    st.tuples(st.just("state"), st.sampled_from(["Active", "Reserve"])),
    st.tuples(st.just("restart"), st.none()),
)


class World:
    """A revision with pods and activators, and the objects written for it."""

    def __init__(self) -> None:
        self.pods: dict[int, bool] = {}
        self.known_activators: set[str] = set()
        self.activators = Activators()
        self.path, self.state = "proxy", "Active"
        self.service: Object | None = None
        self.slice: Object | None = None

    def do(self, what: str, value: object) -> None:
        match what, value:
            case ("ready" | "unready", int(number)):
                self.pods[number] = what == "ready"
            case "gone", int(number):
                self.pods.pop(number, None)
            case "activators", int(count):
                addresses = [f"10.1.0.{number + 1}" for number in range(count)]
                self.known_activators = set(addresses) or self.known_activators
                ports, endpoints = [{"name": "http", "port": ACTIVATOR_PORT}], [{"addresses": [a]} for a in addresses]
                self.activators.put(KEY, {"addressType": "IPv4", "ports": ports, "endpoints": endpoints})
            case "path", str(path):
                self.path = path
            case "state", str(state):
                self.state = state
            case _:
                # After a restart, the slices of the activators' Service are read first.
                before, self.activators = self.activators, Activators()
                for key, slice_ in before._slices.items():
                    self.activators.put(key, slice_)
        self._write()

    def _write(self) -> None:
        revision = a_revision(state=self.state)
        revision = stored(revision, annotations={**annotations_of(revision), TRAFFIC_PATH_ANNOTATION: self.path})
        public = PublicService(
            service=self.service,
            slices=[self.slice] if self.slice else [],
            activators=self.activators.backends,
            pods=pod_backends(self._pods()),
            path=traffic_path_of(revision),
        )
        for write in public_writes(revision, public):
            match write:
                case Create(kind=kinds.SERVICE, body=body):
                    self.service = stored(body)
                case Create(body=body):
                    assert self.slice is None
                    self.slice = stored(body)
                case Patch(patch=patch):
                    assert self.slice is not None
                    self.slice = merged(self.slice, patch)
        again = PublicService(
            service=self.service,
            slices=[self.slice] if self.slice else [],
            activators=self.activators.backends,
            pods=pod_backends(self._pods()),
            path=traffic_path_of(revision),
        )
        assert public_writes(revision, again) == (), "what was written is enough"

    def _pods(self) -> list[Object]:
        return [
            a_pod(
                f"pod-{number}",
                podIP=f"10.2.0.{number}",
                conditions=[{"type": "Ready", "status": "True" if is_ready else "False"}],
            )
            for number, is_ready in self.pods.items()
        ]

    def check(self) -> None:
        if self.slice is None:
            assert not self.known_activators
            return
        endpoints, port = self.slice["endpoints"], self.slice["ports"][0]["port"]
        taking = {endpoint["addresses"][0] for endpoint in endpoints if endpoint["conditions"]["ready"]}
        ready = {f"10.2.0.{number}" for number, is_ready in self.pods.items() if is_ready}
        backend = self.activators.backends.get("IPv4")
        present = {endpoint["addresses"][0] for endpoint in backend.endpoints} if backend else set()
        assert 0 < len(endpoints) <= ENDPOINTS_MAX
        if port == QUEUE_PORT:
            assert taking == ready
            assert ready or not present
        else:
            assert taking == (present or self.known_activators)
            assert present or not ready


@given(st.lists(OPERATIONS, max_size=30))
def test_public_slice_is_never_empty_and_lists_only_accepting_addresses(operations: list[tuple[str, object]]) -> None:
    world = World()
    for what, value in operations:
        world.do(what, value)
        world.check()


@given(st.lists(OPERATIONS, max_size=20))
def test_public_slice_finally_matches_the_last_path(operations: list[tuple[str, object]]) -> None:
    world = World()
    for what, value in operations:
        world.do(what, value)
    world.do("activators", 1)
    world.do("ready", 1)
    world.do("state", "Active")
    world.do("path", "serve")
    assert world.slice is not None
    assert world.slice["ports"][0]["port"] == QUEUE_PORT
    world.do("path", "proxy")
    assert [endpoint["addresses"] for endpoint in world.slice["endpoints"]] == [["10.1.0.1"]]
