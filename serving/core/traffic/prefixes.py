"""Chooses the pod that has the longest prefix of a prompt in its cache.

Model servers cache computations for prompts, and reuse them for prompts with the same beginning. ``read_prompt`` hashes
the beginning of a prompt. ``PrefixTable`` stores which pod got which prefix, and chooses a pod.

Input: bodies of requests, pods, and the beginnings and ends of requests. Output: a pod for each request. Bodies are
untrusted. A body without a prompt has no prefix, and goes to the least loaded pod. The hashes have a secret key, so
that no client can produce collisions. Many different prompts evict older prefixes, and use no more memory.

Several activators learn separately. With the same secret they choose the same pod for a prefix that they do not know
(rendezvous hashing).
"""

import itertools
import re
from collections import OrderedDict
from collections.abc import Collection, Hashable
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec

from serving.core.traffic.prompttokens import BYTES_PER_TOKEN, tokens_of

RequestId = TypeVar("RequestId", bound=Hashable)

BLOCK_ENDS = (
    *(256, 512, 768, 1024, 1536, 2048, 3072, 4096),
    *(6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536),
)
"""The ends of the blocks of a prompt in bytes.

Blocks grow in size, so that a long prompt has 16 blocks and not 256. Bytes after the last block do not count.
"""

LOAD_RATIO_MAX = 1.25
"""A pod with more than this many times the mean tokens in flight gets no request for prefixes that other pods know, too.

Tokens of a prompt that were in the pod's cache count a quarter.
"""


def lone_ratio_max(pod_count: int) -> float:
    """The same bound for prefixes that no other pod knows: only this pod has them in its cache.

    Below 2, because of two pods one may have all tokens.
    """
    return 2.0 - 1.0 / pod_count


# This many cached tokens load a pod as much as one token that is not cached.
_CACHED_PER_TOKEN = 4

BLOCKS_MAX = 65_536
"""Blocks that the table of one revision remembers: about 9 MB."""

# A prefix that is a smaller part of its prompt, like instructions that all prompts share, does not choose the pod.
_PART_MIN = 0.25
# What a pod has saved counts by half after 350 further requests.
_HEAT_KEPT = 0.998
_HASH_BYTES = 8
# A key of the body itself: in a text its quotes would be escaped.
_PROMPT = re.compile(rb'"(?:messages|prompt)"[ \t\r\n]*:[ \t\r\n]*')


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a request: the hash of each prefix of whole blocks, shortest first, and the number of tokens."""

    prefixes: tuple[int, ...] = ()
    tokens: int = 1


class PrefixMatch(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks a prompt has (``block_count``), and how many of them its pod already had (``known_count``)."""

    known_count: int
    block_count: int


def read_prompt(target: bytes, body: bytes, *, length: int, secret: bytes) -> Prompt:
    """Read the prompt in the first bytes of a body of ``length`` bytes. ``secret`` is the key of the hashes.

    The body is hashed unchanged from the value of "messages" or "prompt" on, because clients encode equal messages
    equally.
    """
    match = _PROMPT.search(body)
    prefixes: list[int] = []
    if match is not None:
        hasher, text = blake2b(key=secret, digest_size=_HASH_BYTES), memoryview(body)[match.end() :]
        for start, end in itertools.pairwise((0, *BLOCK_ENDS)):
            if end > len(text):
                break
            hasher.update(text[start:end])
            prefixes.append(int.from_bytes(hasher.digest()))
    # A request without tokens takes a moment of the pod, too.
    return Prompt(prefixes=tuple(prefixes), tokens=max(1, tokens_of(target, body, length=length).total))


def _load_of(prompt: Prompt, known_count: int) -> int:
    """The tokens that a prompt adds to a pod's load. The pod's cache has the first ``known_count`` blocks.

    Cached tokens need no prefill, but take part in each step of decoding. If they counted nothing, all requests with a
    popular prompt would run on one pod.
    """
    cached = BLOCK_ENDS[known_count - 1] // BYTES_PER_TOKEN if known_count else 0
    return max(1, prompt.tokens - cached + cached // _CACHED_PER_TOKEN)


def _rendezvous_rank(prefix: bytes, address: str) -> bytes:
    """The pod with the largest rank is that of the prefix."""
    return blake2b(address.encode(), key=prefix, digest_size=_HASH_BYTES).digest()


class _PodPrefixes:
    """One pod: its prefixes, latest last; its tokens in flight, cached ones a quarter; and the bytes its cache saved."""

    __slots__ = ("heat", "heated_at", "known", "tokens")

    def __init__(self) -> None:
        self.known: OrderedDict[int, None] = OrderedDict()
        self.tokens = 0
        self.heat = 0.0
        self.heated_at = 0

    def known_count(self, prefixes: tuple[int, ...]) -> int:
        """The number of a prompt's prefixes that the pod knows: the shortest ones, as longer ones are dropped first."""
        known = self.known
        if not prefixes or prefixes[0] not in known:
            return 0
        count = len(prefixes)
        while prefixes[count - 1] not in known:
            count -= 1
        return count

    def record(self, prefixes: tuple[int, ...], *, room: int) -> None:
        """Add the prefixes of a prompt, and drop the oldest beyond ``room``."""
        known = self.known
        for prefix in reversed(prefixes):
            known[prefix] = None
            known.move_to_end(prefix)
        self.trim(room)

    def trim(self, room: int) -> None:
        """Drop the oldest prefixes beyond ``room``."""
        while len(self.known) > room:
            self.known.popitem(last=False)

    def heat_after(self, request_count: int) -> float:
        """The prompt bytes that the pod's cache has saved, after ``request_count`` requests; recent ones count most."""
        return self.heat * float(_HEAT_KEPT ** (request_count - self.heated_at))


class PrefixTable(Generic[RequestId]):
    """The known prefixes of one revision's pods, and the tokens in flight of this activator's requests.

    The table has room for ``blocks_max`` blocks, the same number for each pod.
    """

    __slots__ = ("_blocks_max", "_pods", "_request_count", "_running")

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._pods: dict[str, _PodPrefixes] = {}
        self._running: dict[RequestId, tuple[_PodPrefixes, int]] = {}
        self._request_count = 0

    def __repr__(self) -> str:
        blocks = sum(len(pod.known) for pod in self._pods.values())
        return f"PrefixTable({len(self._pods)} pods, {blocks} blocks, {len(self._running)} run)"

    @property
    def heats(self) -> dict[str, float]:
        """The prompt bytes that each pod did not have to process again, by address; recent requests count most."""
        return {address: pod.heat_after(self._request_count) for address, pod in self._pods.items()}

    def set_pods(self, addresses: Collection[str]) -> None:
        """Replace the list of pods. The prefixes of unlisted pods are dropped."""
        self._pods = {address: self._pods.get(address) or _PodPrefixes() for address in addresses}
        for pod in self._pods.values():
            pod.trim(self._room)

    def choose(self, prompt: Prompt, free: Collection[str]) -> str:
        """The pod for a prompt among the listed pods with a free slot. At least one pod must have one.

        The pod with the longest known prefix is chosen on two conditions: the prefix is at least a fourth of the
        prompt, and the pod's tokens in flight are within ``LOAD_RATIO_MAX`` times the mean, which includes this
        request, or ``lone_ratio_max`` if no other pod knows a fourth. If no pod knows a fourth, the hash of the shortest
        unknown prefix chooses among the pods within ``lone_ratio_max``. Otherwise the pod with the fewest tokens in
        flight is chosen; among equal pods, the longest prefix decides, then the fewest stored prefixes.
        """
        pods, prefixes = self._pods, prompt.prefixes
        bytes_min = _PART_MIN * BLOCK_ENDS[len(prefixes) - 1] if prefixes else 0.0
        counts = {address: pod.known_count(prefixes) for address, pod in pods.items()}
        near = {address for address, count in counts.items() if count and BLOCK_ENDS[count - 1] >= bytes_min}
        total = sum(pod.tokens for pod in pods.values())
        ratio_max = LOAD_RATIO_MAX if len(near) > 1 else lone_ratio_max(len(pods))

        def is_within(address: str) -> bool:
            return pods[address].tokens <= ratio_max * (total + _load_of(prompt, counts[address])) / len(pods)

        if prefixes and not near:
            unknown = prefixes[max(counts.values())].to_bytes(_HASH_BYTES)
            candidates = [address for address in free if is_within(address)]
            if candidates:
                return max(candidates, key=lambda address: _rendezvous_rank(unknown, address))

        def rank(address: str) -> tuple[int, int, int, int]:
            pod, count = pods[address], counts[address]
            is_chosen = address in near and is_within(address)
            return (count if is_chosen else 0, -pod.tokens, count, -len(pod.known))

        return max(free, key=rank)

    def begin(self, request: RequestId, prompt: Prompt, address: str) -> PrefixMatch:
        """Record that a request runs on a listed pod."""
        pod, prefixes = self._pods[address], prompt.prefixes
        count = pod.known_count(prefixes)
        self._request_count += 1
        saved_bytes = BLOCK_ENDS[count - 1] if count else 0
        pod.heat, pod.heated_at = pod.heat_after(self._request_count) + saved_bytes, self._request_count
        pod.record(prefixes, room=self._room)
        tokens = _load_of(prompt, count)
        pod.tokens += tokens
        self._running[request] = pod, tokens
        return PrefixMatch(known_count=count, block_count=len(prefixes))

    def end(self, request: RequestId) -> None:
        """Record that a request has ended, or left its pod. An unknown request has no effect."""
        entry = self._running.pop(request, None)
        if entry is not None:
            pod, tokens = entry
            pod.tokens -= tokens

    @property
    def _room(self) -> int:
        return max(1, self._blocks_max // max(1, len(self._pods)))
