"""Simulates model servers as the pods of one revision: they cache prompts, read them in order, and write answers.

A server reads one prompt after the other, without the leading blocks in its cache. It writes all answers concurrently,
in steps that take longer with more answers. Its cache drops the blocks used longest ago. With prefix affinity the
product's ``PrefixTable`` chooses the server. The product's ``TokenMeter`` counts tokens in flight; each answer is
streamed.
"""

import heapq
import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence

import msgspec

from serving.core.scaling.adaptive.gaps import GapPrior
from serving.core.traffic.prefixes import PrefixTable, Prompt, read_prompt
from serving.core.traffic.prompttokens import BYTES_PER_TOKEN, OUTPUT_DEFAULT, RequestTokens
from serving.queueproxy.tokens import EVENT_BYTES, TokenMeter
from serving.tools.simulator.nodes import NodeRoom
from serving.tools.simulator.pods import SimulatedPod
from serving.tools.simulator.results import PromptFigures, RevisionResult
from serving.tools.simulator.revision_run import FINISHED, RevisionRun, RunConfig
from serving.tools.simulator.trace import BLOCK_TOKENS, PromptTrace, RecordedPrompt

_TARGET, _SECRET = b"/v1/chat/completions", bytes(16)
# An answer with fewer tokens left has ended, but for rounding errors.
_TOKENS_MIN = 1e-6


class ServerSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The speed and the cache of one server. The defaults are typical of a model with 8 billion parameters.

    In each step a server writes one token of each answer. A step takes ``step_s`` seconds, plus ``step_share_s`` for
    each answer. ``cache_blocks`` is the size of the prompt cache.
    """

    prompt_tokens_per_s: float = 12_000.0
    step_s: float = 0.02
    """Time of a step, which writes a token of each answer."""

    step_share_s: float = 0.0005
    """Time that each answer adds to a step."""

    cache_blocks: int = 400_000 // BLOCK_TOKENS


class BlockCache:
    """The prefix cache of a server: the blocks (runs of tokens) of the latest prompts, least recently used first."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def read(self, blocks: tuple[int, ...]) -> int:
        """Add the blocks of a prompt; return the number of leading blocks that were in the cache."""
        hits = len(list(itertools.takewhile(self._blocks.__contains__, blocks)))
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)
        return hits


class ModelServer:
    """One model server. It reads prompts one by one, and writes all answers at the same speed.

    ``_written`` is the number of tokens that an answer running from the start would have by now.
    """

    def __init__(self, speed: ServerSpeed) -> None:
        self.tokens = 0
        self.token_seconds = 0.0
        self._speed = speed
        self._cache = BlockCache(speed.cache_blocks)
        self._reads: deque[tuple[float, int, int]] = deque()
        self._reads_until_s = self._at_s = self._counted_s = self._written = 0.0
        self._answers: list[tuple[float, int]] = []
        self._begun: dict[int, float] = {}

    def add(self, number: int, prompt: RecordedPrompt, at_s: float) -> tuple[int, float]:
        """Queue a prompt; return the number of its cached blocks, and the time at which the prompt has been read."""
        hits = self._cache.read(prompt.blocks)
        tokens = max(1, prompt.input_tokens - hits * BLOCK_TOKENS)
        self._reads_until_s = max(self._reads_until_s, at_s) + tokens / self._speed.prompt_tokens_per_s
        self._reads.append((self._reads_until_s, number, prompt.output_tokens))
        return hits, self._reads_until_s

    def count(self, tokens: int, at_s: float) -> None:
        """Add ``tokens``, which may be negative, to the estimated tokens in flight."""
        self.token_seconds += self.tokens * (at_s - self._counted_s)
        self.tokens, self._counted_s = self.tokens + tokens, at_s

    def streamed(self, number: int, at_s: float) -> float:
        """The number of tokens of an answer that have been written at ``at_s``, at most ``next_s``."""
        if number not in self._begun:
            return 0.0
        return self._written + max(0.0, at_s - self._at_s) / self._step_s() - self._begun[number]

    def next_s(self) -> float:
        """When the next prompt has been read, or the next answer ends."""
        end_s = math.inf
        if self._answers:
            end_s = self._at_s + max(0.0, self._answers[0][0] - self._written) * self._step_s()
        return min(end_s, self._reads[0][0] if self._reads else math.inf)

    def advance(self, at_s: float) -> list[int]:
        """Advance to ``at_s``, at most ``next_s``; return the requests whose answers end."""
        if self._answers:
            self._written += max(0.0, at_s - self._at_s) / self._step_s()
        self._at_s = at_s
        ended = []
        while self._answers and self._answers[0][0] <= self._written + _TOKENS_MIN:
            ended.append(heapq.heappop(self._answers)[1])
            del self._begun[ended[-1]]
        while self._reads and self._reads[0][0] <= at_s:
            _, number, tokens = self._reads.popleft()
            self._begun[number] = self._written
            heapq.heappush(self._answers, (self._written + tokens, number))
        return ended

    def _step_s(self) -> float:
        return self._speed.step_s + self._speed.step_share_s * len(self._answers)


class PromptRun(RevisionRun):
    """One run of a revision of model servers, whose requests are prompts.

    Where ``RevisionRun`` has the duration of a request, this class has the number of its prompt. A wait ends with the
    first token, also for a goal such as p90-wait<2s.
    """

    def __init__(  # noqa: PLR0913 - what a run is
        self,
        trace: PromptTrace,
        config: RunConfig,
        *,
        until_s: float,
        speed: ServerSpeed,
        activator_count: int = 1,
        nodes: NodeRoom | None = None,
        prior: GapPrior | None = None,
    ) -> None:
        """``speed`` is the speed of each server.

        Requests always pass through the activators, which read the prompts. Several activators take turns, and do not
        share what they learn.
        """
        own = msgspec.structs.replace(config, has_burst_switch=False, skips=False)
        if config.spec.slo is not None and config.spec.slo.is_wait:
            # A queue-proxy does not see the first token, so no decision follows this goal.
            own = msgspec.structs.replace(own, spec=msgspec.structs.replace(config.spec, slo=None), slo=config.spec.slo)
        super().__init__(trace.name, trace.arrivals(config.seed), own, until_s=until_s, nodes=nodes, prior=prior)
        self.servers: dict[str, ModelServer] = {}
        self._prompts = trace.prompts
        self._speed = speed
        self._has_affinity = config.has_prefix_affinity
        self._tables: list[PrefixTable[int]] = [PrefixTable() for _ in range(activator_count)]
        self._listed: tuple[str, ...] = ()
        self._running: dict[int, tuple[ModelServer, int, float]] = {}
        # The next event of each server.
        self._due_s: dict[str, float] = {}
        self._meter: TokenMeter[int] = TokenMeter(0.0, sent_bytes_of=self._sent_bytes)
        self._reported_s = 0.0
        self._hit_count = self._block_count = 0
        self._first_tokens_s: list[float] = []

    def read(self, prompt: RecordedPrompt) -> Prompt:
        """The prompt as an activator reads it."""
        return prompt_of(prompt.body(), input_tokens=prompt.input_tokens)

    def _pick(self, took_s: float) -> SimulatedPod:
        if not self._has_affinity:
            return super()._pick(took_s)
        listed = tuple(pod.address for pod in self.pods.ready)
        if listed != self._listed:
            self._listed = listed
            for table in self._tables:
                table.set_pods(listed)
        number = int(took_s)
        prompt = self.read(self._prompts[number])
        free = {pod.address: pod for pod in self.pods.ready if pod.is_in_line}
        table = self._tables[number % len(self._tables)]
        address = table.choose(prompt, free)
        table.begin(number, prompt, address)
        return free[address]

    def _serve(self, pod: SimulatedPod, at_s: float, took_s: float, *, waited_s: float = 0.0) -> None:
        self.pods.start_request(pod, at_s)
        number, server = int(took_s), self.servers.setdefault(pod.address, ModelServer(self._speed))
        prompt = self._prompts[number]
        tokens = RequestTokens(prompt=prompt.input_tokens, answer=OUTPUT_DEFAULT)
        self._meter.arrive(number, tokens, at_s)
        self._end(pod, server, at_s)
        hits, read_s = server.add(number, prompt, at_s)
        server.count(tokens.total, at_s)
        self._running[number] = server, tokens.total, at_s - waited_s
        self._hit_count += hits
        self._block_count += len(prompt.blocks)
        first_s = waited_s + read_s - at_s
        self._first_tokens_s.append(first_s)
        if self._judge is not None and self._judge.is_wait:
            self._judge.serve(at_s, first_s, 0.0)
        self._schedule(pod, server)

    def _finish(self, pod: SimulatedPod, at_s: float) -> None:
        if self._due_s.get(pod.address) != at_s:
            # The server has changed since this event was scheduled, and a later event replaces it.
            return
        del self._due_s[pod.address]
        server = self.servers[pod.address]
        self._end(pod, server, at_s)
        self._schedule(pod, server)
        if self._queue:
            self._grant(at_s)

    def _end(self, pod: SimulatedPod, server: ModelServer, at_s: float) -> None:
        """Advance a server, and end the requests whose answers are complete."""
        for number in server.advance(at_s):
            _, tokens, arrived_s = self._running.pop(number)
            server.count(-tokens, at_s)
            self._meter.exit(number, at_s)
            self._tables[number % len(self._tables)].end(number)
            if self._judge is not None and not self._judge.is_wait:
                self._judge.serve(at_s, at_s - arrived_s, 0.0)
            if self._log is not None:
                self._log.latencies_s.append(at_s - arrived_s)
            self._count_out(at_s)
            self.pods.release(pod, at_s)

    def _schedule(self, pod: SimulatedPod, server: ModelServer) -> None:
        next_s = server.next_s()
        if next_s < self._due_s.get(pod.address, math.inf):
            self._due_s[pod.address] = next_s
            self._sequence += 1
            heapq.heappush(self._events, (next_s, self._sequence, FINISHED, pod))

    def _count_in(self, at_s: float, *, is_proxied: bool = True) -> None:
        is_first = not self._inside
        super()._count_in(at_s, is_proxied=is_proxied)
        if is_first:
            # The mean of the first second with load begins with this second.
            self._tokens(self._second_end_s - 1.0)

    def _tokens(self, end_s: float) -> float:
        self._reported_s = end_s
        return self._meter.report(end_s)

    def _heats(self) -> Mapping[str, float]:
        heats: Counter[str] = Counter()
        for table in self._tables:
            heats.update(table.heats)
        return heats

    def _sent_bytes(self, number: int) -> int:
        return int(self._running[number][0].streamed(number, self._reported_s)) * EVENT_BYTES

    def finish(self) -> RevisionResult:
        """The result at the end."""
        result = super().finish()
        loads = [server.token_seconds for server in self.servers.values()]
        result.prompts = figures_of(self._first_tokens_s, self._hit_count, self._block_count, loads=loads)
        return result


def prompt_of(body: bytes, *, input_tokens: int) -> Prompt:
    """The prompt in the beginning of a body, as an activator reads it."""
    return read_prompt(_TARGET, body, length=input_tokens * BYTES_PER_TOKEN, secret=_SECRET)


def figures_of(
    first_tokens_s: Sequence[float], hit_count: int, block_count: int, *, loads: Sequence[float]
) -> PromptFigures | None:
    """The figures of served prompts; None without one."""
    if not first_tokens_s:
        return None
    ordered = sorted(first_tokens_s)
    return PromptFigures(
        hit_share=hit_count / max(1, block_count),
        ttft_mean_s=sum(ordered) / len(ordered),
        ttft_p99_s=ordered[int(0.99 * (len(ordered) - 1))],
        load_ratio=max(loads) * len(loads) / max(1e-9, sum(loads)),
    )
