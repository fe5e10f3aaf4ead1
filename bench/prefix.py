"""Compares ways to choose the pod of a prompt, with recorded prompts and model servers that cache prefixes, on virtual time.

    python bench/prefix.py --trace FILE.blocks.csv.xz [--pods 4 8 16] [--activators 1] [--load 1.1] [--quick] [--json]

The bodies have the recorded blocks as text, and the activator's own ``read_prompt`` and ``PrefixTable`` read and
choose. A server reads one prompt after the other, without the leading blocks that its cache has, and then writes all
answers at once, the slower the more there are. Its cache has room for a tenth of all blocks, and drops the blocks used
longest ago. ``--load`` is the share of all servers' time that reading would take without a cache: above 1 reading is
the bottleneck. With several activators each gets a request in turn, and learns alone.

Goals: hits at least 80 % of those of one cache of the same total size; mean time to the first token at most 0.6 of that
with round robin and 0.8 of that with least loaded; no server above 1.25 times the mean tokens in flight.
"""

import csv
import heapq
import itertools
import lzma
import random
import statistics
import time
import tracemalloc
from collections import OrderedDict
from pathlib import Path

import msgspec

from bench.parts.program import exit_code, options_of, show
from serving.core.traffic.policy import BalancedPod, RoundRobin
from serving.core.traffic.prefixes import BLOCK_ENDS, BLOCKS_MAX, PrefixTable, Prompt, read_prompt
from serving.core.traffic.prompttokens import BYTES_PER_TOKEN

BLOCK_TOKENS = 512
CACHE_PART = 0.1
# Seconds of a step that writes a token of each answer, alone and for each further answer.
STEP_S, STEP_SHARE_S = 0.02, 0.0005
TARGET, SECRET = b"/v1/chat/completions", bytes(16)
HITS_MIN, ROUND_ROBIN_MAX, LEAST_LOADED_MAX, LOAD_MAX = 0.8, 0.6, 0.8, 1.25
WAYS = ("round robin", "least loaded", "prefix")


class Recorded(msgspec.Struct, frozen=True):
    """A request of the trace."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]

    def body(self) -> bytes:
        """The part of its body that an activator reads ahead."""
        count = BLOCK_ENDS[-1] // (BLOCK_TOKENS * BYTES_PER_TOKEN) + 1
        text = b"".join((b"%015d " % block) * (BLOCK_TOKENS * BYTES_PER_TOKEN // 16) for block in self.blocks[:count])
        return (b'{"model":"m","messages":[{"role":"user","content":"' + text)[: BLOCK_ENDS[-1]]


class Cache:
    """The blocks of prompts, the latest last."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def read(self, blocks: tuple[int, ...]) -> int:
        """Add the blocks of a prompt; return how many leading ones were there."""
        hits = len(list(itertools.takewhile(self._blocks.__contains__, blocks)))
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)
        return hits


class Server:
    """One model server. All answers that it writes advance alike: ``_written`` tokens of each so far."""

    def __init__(self, name: str, *, room: int, tokens_per_s: float) -> None:
        self.name = name
        self.cache = Cache(room)
        self.tokens = 0
        self.token_seconds = 0.0
        self.changed_s = 0.0
        self._tokens_per_s = tokens_per_s
        self._reads_until_s = 0.0
        self._written = 0.0
        self._at_s = 0.0
        self._answers: list[tuple[float, int]] = []

    def read(self, request: Recorded) -> tuple[int, float]:
        """Queue a prompt; return its cached blocks, and when it has been read."""
        hits = self.cache.read(request.blocks)
        tokens = max(1, request.input_tokens - hits * BLOCK_TOKENS)
        self._reads_until_s = max(self._reads_until_s, request.at_s) + tokens / self._tokens_per_s
        return hits, self._reads_until_s

    def count(self, tokens: int, at_s: float) -> None:
        """Change the tokens in flight."""
        self.token_seconds += self.tokens * (at_s - self.changed_s)
        self.tokens, self.changed_s = self.tokens + tokens, at_s

    def write(self, number: int, tokens: int, at_s: float) -> None:
        """Begin an answer."""
        self._advance(at_s)
        heapq.heappush(self._answers, (self._written + tokens, number))

    def next_end_s(self) -> float | None:
        """When the next answer ends, if none begins before."""
        return self._at_s + (self._answers[0][0] - self._written) * self._step_s() if self._answers else None

    def end(self, at_s: float) -> int:
        """End the next answer; return its number."""
        self._advance(at_s)
        return heapq.heappop(self._answers)[1]

    def _step_s(self) -> float:
        return STEP_S + STEP_SHARE_S * len(self._answers)

    def _advance(self, at_s: float) -> None:
        self._written += (at_s - self._at_s) / self._step_s()
        self._at_s = at_s


class Chooser:
    """Chooses servers in one of ``WAYS``, as one activator or several in turn."""

    def __init__(self, way: str, names: list[str], *, activators: int) -> None:
        self._way = way
        self._names = names
        self._line = RoundRobin()
        for name in names:
            self._line.add(BalancedPod(name))
        self._tables: list[PrefixTable[int]] = [PrefixTable() for _ in range(activators)]
        for table in self._tables:
            table.set_pods(names)
        self.cpu_s = 0.0

    def begin(self, number: int, request: Recorded) -> tuple[str, int]:
        """The server of a request, and the request's tokens as the activator estimates them."""
        body = request.body()
        begun_s = time.perf_counter()
        prompt = read_prompt(TARGET, body, length=request.input_tokens * BYTES_PER_TOKEN, secret=SECRET)
        if self._way != WAYS[-1]:
            prompt = Prompt(tokens=prompt.tokens)
        table = self._tables[number % len(self._tables)]
        name = self._line.pick().address if self._way == WAYS[0] else table.choose(prompt, self._names)
        table.begin(number, prompt, name)
        self.cpu_s += time.perf_counter() - begun_s
        return name, prompt.tokens

    def end(self, number: int) -> None:
        """End a request."""
        self._tables[number % len(self._tables)].end(number)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one way.

    ``load_ratio`` is the highest mean of tokens in flight of a server over the mean of all.
    """

    hit_share: float
    ttft_s: float
    ttft_p99_s: float
    load_ratio: float
    cpu_us: float


def run(requests: list[Recorded], servers: list[Server], chooser: Chooser) -> Figures:
    """Serve all requests."""
    by_name = {server.name: server for server in servers}
    tokens_of: dict[int, int] = {}
    waits_s: list[float] = []
    hits = 0
    # Prompts that will have been read, and answers that may end, as of a change of their server.
    events: list[tuple[float, int, int]] = []
    changes = dict.fromkeys(by_name, 0)
    place_of: dict[int, str] = {}

    def advance(until_s: float) -> None:
        while events and events[0][0] <= until_s:
            at_s, number, change = heapq.heappop(events)
            name = place_of[number] if number >= 0 else servers[~number].name
            server = by_name[name]
            if number >= 0:
                server.write(number, requests[number].output_tokens, at_s)
            elif change == changes[name]:
                ended = server.end(at_s)
                server.count(-tokens_of.pop(ended), at_s)
                chooser.end(ended)
            else:
                continue
            changes[name] += 1
            end_s = server.next_end_s()
            if end_s is not None:
                heapq.heappush(events, (max(end_s, at_s), ~servers.index(server), changes[name]))

    for number, request in enumerate(requests):
        advance(request.at_s)
        name, tokens_of[number] = chooser.begin(number, request)
        place_of[number] = name
        server = by_name[name]
        server.count(tokens_of[number], request.at_s)
        cached, read_s = server.read(request)
        hits += cached
        waits_s.append(read_s - request.at_s)
        heapq.heappush(events, (read_s, number, 0))
    advance(float("inf"))
    loads = [server.token_seconds for server in servers]
    return Figures(
        hit_share=hits / sum(len(request.blocks) for request in requests),
        ttft_s=statistics.fmean(waits_s),
        ttft_p99_s=statistics.quantiles(waits_s, n=100)[-1],
        load_ratio=max(loads) / statistics.fmean(loads),
        cpu_us=1e6 * chooser.cpu_s / len(requests),
    )


def read_trace(path: Path, count: int) -> list[Recorded]:
    """The first requests of a trace."""
    with lzma.open(path, "rt", newline="") as file:
        rows = itertools.islice(csv.DictReader(file), count)
        return [
            Recorded(
                float(row["at_s"]),
                int(row["input_tokens"]),
                int(row["output_tokens"]),
                tuple(map(int, row["blocks"].split())),
            )
            for row in rows
        ]


def table_mb() -> float:
    """The memory of a full table."""
    dice, name = random.Random(1), "10.0.0.1:8012"
    tracemalloc.start()
    table = PrefixTable[int]()
    table.set_pods([name])
    for number in range(BLOCKS_MAX // len(BLOCK_ENDS)):
        table.begin(number, Prompt(prefixes=tuple(dice.getrandbits(64) for _ in BLOCK_ENDS)), name)
        table.end(number)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used_bytes / 1e6


def main() -> int:
    """Print the figures; return the exit code."""
    options = options_of(
        __doc__, trace=Path, pods=(4, 8, 16), activators=1, load=1.1, count=10**9, quick={"count": 300}
    )
    requests = read_trace(options.trace, options.count)
    blocks = {block for request in requests for block in request.blocks}
    room = max(1, int(CACHE_PART * len(blocks)))
    tokens_per_s = sum(request.input_tokens for request in requests) / max(1.0, requests[-1].at_s)
    figures: dict[str, object] = {"requests": len(requests), "blocks": len(blocks), "table_mb": table_mb()}
    is_met = True
    for count in options.pods:
        shared = Cache(count * room)
        shared_share = sum(shared.read(request.blocks) for request in requests) / sum(
            len(request.blocks) for request in requests
        )
        by_way: dict[str, Figures] = {}
        names = [f"10.0.0.{number}:8012" for number in range(count)]
        for way in WAYS:
            servers = [Server(name, room=room, tokens_per_s=tokens_per_s / count / options.load) for name in names]
            by_way[way] = run(requests, servers, Chooser(way, names, activators=options.activators))
            figures[f"{count} pods, {way}"] = msgspec.structs.asdict(by_way[way])
        robin, least, prefix = by_way.values()
        hits, to_robin, to_least = (
            prefix.hit_share / shared_share,
            prefix.ttft_s / robin.ttft_s,
            prefix.ttft_s / least.ttft_s,
        )
        figures[f"{count} pods"] = (
            f"hits {hits:.2f} of one cache's {shared_share:.3f} (goal {HITS_MIN}), time to the first token {to_robin:.2f} of round "
            f"robin (goal {ROUND_ROBIN_MAX}) and {to_least:.2f} of least loaded (goal {LEAST_LOADED_MAX}), "
            f"load {prefix.load_ratio:.2f} (goal {LOAD_MAX})"
        )
        is_met &= hits >= HITS_MIN and to_robin <= ROUND_ROBIN_MAX and to_least <= LEAST_LOADED_MAX
        is_met &= prefix.load_ratio <= LOAD_MAX
    show(figures, options)
    return exit_code(options, is_met=is_met)


if __name__ == "__main__":
    raise SystemExit(main())
