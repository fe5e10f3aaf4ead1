"""The cases of Http11Probe: malformed, ambiguous and unusual HTTP/1.1 requests, and which responses are right.

``data/probe.jsonl`` has a case a line: ``send`` are the steps on one connection, ``fail``, ``pass`` and ``warn`` are
tried in this order, and what none of them describes fails. Each is a list of alternatives; all words of one must hold.
A word is a status (``400``, ``2xx``, ``400-599``), ``any`` or ``none`` (a response or none), ``closed``, or one of
those below; ``2:`` in front of a word is about the second step. Ids, bytes and verdicts are those of MDA2AV/Http11Probe
(95bc6a9); ``data/h1spec.jsonl`` has those of uNetworking/h1spec (f0a5650) in the same form.
"""

import email.utils
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance.http.raw import RawConnection, RawResponse

DATA = Path(__file__).parent / "data"
# A server that stays silent where silence is right is not waited for any longer.
_SILENCE_S = 1.0
_AT_ONCE = 16
_REPEAT = re.compile(r"\{([^{}*]+)\*(\d+)\}")
_CHUNK = re.compile(r"\{chunk\}(.*?)\{/chunk\}", re.DOTALL)
_STATUS = re.compile(r"(\d{3})(?:-(\d{3}))?|(\d)xx")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case, as it stands in the data. ``rfc`` is the RFC and its section, ``level`` the strength of its rule."""

    id: str
    send: list[str]
    rfc: str = ""
    level: str = "must"
    scored: bool = True
    fail: list[str] = []
    passes: list[str] = msgspec.field(default=[], name="pass")
    warn: list[str] = []


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a case (``pass``, ``warn`` or ``fail``) and what the server did."""

    case: Case
    verdict: str
    answers: list[RawResponse]


def read_cases(name: str = "probe") -> list[Case]:
    """All cases of a file."""
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [msgspec.convert(json.loads(line), Case) for line in lines if line]


def run_case(case: Case, address: tuple[str, int], *, host: str, wait_s: float) -> Outcome:
    """Run one case on its own connection."""
    may_be_silent = any("none" in words.split() for words in case.passes)
    connection = RawConnection(address, wait_s=wait_s)
    answers: list[RawResponse] = []
    try:
        for text in case.send:
            if answers and answers[-1].closed:
                answers.append(RawResponse(unsent=True))
                continue
            data = payload(text, host, answers[0].headers if answers else {})
            answers.append(
                connection.ask(
                    data, wait_s=_SILENCE_S if may_be_silent else None, head_only=data.lstrip().startswith(b"HEAD ")
                )
            )
    finally:
        connection.close()
    return Outcome(case=case, verdict=verdict(case, answers), answers=answers)


def run_cases(cases: list[Case], address: tuple[str, int], *, host: str, wait_s: float) -> list[Outcome]:
    """Run cases, some at a time: most of their time is waiting for what must not come."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda case: run_case(case, address, host=host, wait_s=wait_s), cases))


def payload(text: str, host: str, seen: Mapping[str, str]) -> bytes:
    """The bytes of a step. ``seen`` are the headers of the first response, for conditional requests."""
    etag = seen.get("etag", '"none"')
    bare = etag.removeprefix("W/")
    result = {
        "{host}": host,
        "{etag}": etag,
        "{bare-etag}": bare.strip('"'),
        "{weak-etag}": f"W/{bare}",
        "{last-modified}": seen.get("last-modified", "Thu, 01 Jan 2099 00:00:00 GMT"),
    }
    for name, value in result.items():
        text = text.replace(name, value)
    text = _REPEAT.sub(lambda m: "".join(m[1].replace("#", str(n)) for n in range(int(m[2]))), text)
    text = _CHUNK.sub(lambda m: f"{len(m[1]):x}\r\n{m[1]}\r\n", text)
    body = text.partition("\r\n\r\n")[2]
    return text.replace("{length}", str(len(body))).encode("latin-1")


def verdict(case: Case, answers: list[RawResponse]) -> str:
    """Judge the responses to all steps of a case."""
    for name, alternatives in (("fail", case.fail), ("pass", case.passes), ("warn", case.warn)):
        if any(all(_holds(word, answers) for word in words.split(" ")) for words in alternatives):
            return name
    return "fail"


def _holds(word: str, answers: list[RawResponse]) -> bool:
    answer = answers[0]
    if word.startswith("2:"):
        answer, word = answers[1], word[2:]
    status = _STATUS.fullmatch(word)
    if status is not None:
        low = int(status[1] or status[3] + "00")
        high = int(status[2] or (status[1] or status[3] + "99"))
        return low <= answer.status <= high
    name, _, wanted = word.partition(":")
    return bool(_WORDS[name](answer, wanted))


def _echoes(answer: RawResponse, wanted: str) -> bool:
    """Whether the app saw a header: ``Name=value``, "_" in place of a space in the name."""
    return wanted in {
        re.sub(r"[ \t]", "_", name) + "=" + value.strip()
        for name, text, value in (line.partition(":") for line in answer.body.decode("latin-1").splitlines())
        if text
    }


def _is_imf_date(answer: RawResponse, _: str) -> bool:
    text = answer.headers.get("date", "")
    try:
        return email.utils.format_datetime(email.utils.parsedate_to_datetime(text), usegmt=True) == text
    except ValueError:
        return False


_WORDS: dict[str, Callable[[RawResponse, str], Any]] = {
    "any": lambda answer, _: answer.status,
    "none": lambda answer, _: not answer.status,
    "closed": lambda answer, _: answer.closed,
    "open": lambda answer, _: not answer.closed,
    "unsent": lambda answer, _: answer.unsent,
    "empty": lambda answer, _: not answer.body,
    "body": lambda answer, wanted: answer.body.strip(b"\r\n") == wanted.replace("_", " ").encode(),
    "has": lambda answer, wanted: wanted.encode() in answer.body,
    "lacks": lambda answer, wanted: wanted.encode() not in answer.body,
    "header": lambda answer, wanted: wanted.lower() in answer.headers,
    "no-header": lambda answer, wanted: wanted.lower() not in answer.headers,
    "answers": lambda answer, wanted: answer.count >= 2 if wanted == "2" else answer.count == int(wanted),
    "echoes": _echoes,
    "not-echoes": lambda answer, wanted: not _echoes(answer, wanted),
    "imf-date": _is_imf_date,
}
