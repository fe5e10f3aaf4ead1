"""Several activator processes, their peers' messages and the pods' requests, on a manual clock."""

import heapq
import random
from collections.abc import Callable, Sequence

from serving.activator.queueing.outcome import Dispatch, RoutingOutcome
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.router import RequestRouter, RevisionTable
from serving.activator.queueing.slices import ServedPod, ServedSlice
from serving.activator.slots.broker import SlotBroker
from serving.activator.slots.messages import PeerHello, SlotMessage
from serving.core.model.knative import ServingState
from serving.core.settings.activator import ActivatorSettings
from tests.invariants import validate

KEY = ("default", "hello-00001")


def pod(address: str) -> ServedPod:
    return ServedPod(address=address, namespace="default", name=f"pod-{address}")


class Life:
    """One process from its start to its death."""

    def __init__(self, world: "World", index: int) -> None:
        self.world = world
        self.index = index
        self.is_alive = True
        self.known: dict[int, Life] = {}
        """The lives of peers that this one knows of."""
        settings = ActivatorSettings(
            index=index, count=world.count, peer_folder="/nowhere", queue_wait_max_s=3600.0, queue_depth_max=100_000
        )
        world.rounds += 1_000
        table = RevisionTable[int]()
        self.broker = SlotBroker[int](
            table,
            index=index,
            first_round=world.rounds,
            send=lambda peer, message: world.send(self, peer, message),
        )
        self.router = RequestRouter[int](settings, random=world.random.random, table=table, slots=self.broker)

    def start(self) -> None:
        """Connect to all living processes and send each a hello."""
        self.known = {life.index: life for life in self.world.living if life is not self}
        for life in self.known.values():
            self.world.post(self, life, PeerHello(index=self.index))
        self.do(self.broker.set_peers(self.known, self.world.now_s))
        facts = ServedRevision(
            key=KEY,
            resource_version="1",
            serving_state=ServingState.ACTIVE,
            target_concurrency=70.0,
            container_concurrency=self.world.slots_per_pod,
        )
        self.do(self.router.set_revision(facts, self.world.now_s))

    def observe(self, pods: Sequence[str]) -> None:
        facts = ServedSlice(key="default/s", revision=KEY, pods=tuple(map(pod, pods)))
        self.do(self.router.set_slice(facts, self.world.now_s))

    def arrive(self, request: int) -> None:
        response = self.router.arrive(KEY, request, self.world.now_s)
        if isinstance(response, Dispatch):
            self.world.began(self, response)
        else:
            self.world.waiting[request] = self

    def finish(self, request: int) -> None:
        del self.world.running[request]
        self.go(self.router.finish(KEY, request, self.world.now_s))

    def receive(self, sender: "Life", message: SlotMessage) -> None:
        """Handle a message; drop one of an earlier process, except its greeting, which gets a reply."""
        if isinstance(message, PeerHello):
            if sender.is_alive and self.known.get(sender.index) is not sender:
                self.lose(sender.index)
                self.known[sender.index] = sender
                self.do(self.broker.set_peers(self.known, self.world.now_s))
        elif self.known.get(sender.index) is sender:
            self.do(self.broker.receive(sender.index, message, self.world.now_s))

    def lose(self, index: int) -> None:
        """Handle the death of a peer."""
        if self.known.pop(index, None) is not None:
            self.do(self.broker.set_peers(self.known, self.world.now_s))

    def tick(self) -> None:
        self.do(self.router.tick(self.world.now_s))

    def do(self, outcome: RoutingOutcome[int]) -> None:
        self.go(outcome.dispatches)

    def go(self, runs: Sequence[Dispatch[int]]) -> None:
        for run in runs:
            self.world.waiting.pop(run.request, None)
            self.world.began(self, run)


class World:
    """All processes and pods. ``on_send`` is called for each message, ``on_begin`` for each started request."""

    def __init__(self, *, count: int, slots_per_pod: int, seed: int = 0) -> None:
        self.count = count
        self.slots_per_pod = slots_per_pod
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.rounds = 0
        self.living: list[Life] = []
        self.pods: tuple[str, ...] = ()
        self.messages: list[tuple[Life, Life, SlotMessage]] = []
        self.running: dict[int, tuple[Life, str]] = {}
        self.waiting: dict[int, Life] = {}
        self.on_send: Callable[[], None] = lambda: None
        self.on_begin: Callable[[int], None] = lambda _: None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._due_count = 0

    def start(self, index: int) -> Life:
        """Start a process; it replaces one of the same index."""
        assert all(life.index != index for life in self.living)
        life = Life(self, index)
        self.living.append(life)
        life.start()
        life.observe(self.pods)
        return life

    def kill(self, life: Life) -> None:
        """Kill a process and its requests; the others are notified later."""
        life.is_alive = False
        self.living.remove(life)
        self.running = {request: values for request, values in self.running.items() if values[0] is not life}
        self.waiting = {request: value for request, value in self.waiting.items() if value is not life}

    def send(self, sender: Life, index: int, message: SlotMessage) -> None:
        self.post(sender, sender.known[index], message)

    def post(self, sender: Life, receiver: Life, message: SlotMessage) -> None:
        self.messages.append((sender, receiver, message))
        self.on_send()

    def deliver(self, place: int = 0) -> None:
        """Deliver the message at this index; a dead receiver loses it."""
        sender, receiver, message = self.messages.pop(place)
        if receiver.is_alive:
            receiver.receive(sender, message)

    def began(self, life: Life, run: Dispatch[int]) -> None:
        self.running[run.request] = (life, run.pod.address)
        self.on_begin(run.request)

    def validate(self, pods: Sequence[str]) -> None:
        """Assert that neither the requests of a pod nor the rights to it exceed its slots."""
        for life in self.living:
            validate(life.router)
        for address in pods:
            total = 0
            for life in self.living:
                used = sum(pair == (life, address) for pair in self.running.values())
                total += max(used, life.broker.ledger.right(KEY, address, self.slots_per_pod))
            assert total <= self.slots_per_pod, (address, [life.broker.ledger for life in self.living])

    # Time.

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._due_count += 1
        heapq.heappush(self._due, (self.now_s + delay_s, self._due_count, what))

    def step(self, *, until_s: float) -> bool:
        """Run the next due step, if it is due before ``until_s``; False without one."""
        if not self._due:
            return False
        if until_s < self._due[0][0]:
            self.now_s = max(self.now_s, until_s)
            return True
        self.now_s, _, what = heapq.heappop(self._due)
        what()
        return True
