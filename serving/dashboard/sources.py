"""Reads the metrics of all activators at once: of each URL, and of each address that its name resolves to.

A headless Service resolves to all activators, so each is asked by its address. An activator that does not answer is left out;
it is an error if none answers.
"""

import asyncio
import socket

import aiohttp
from yarl import URL

_ANSWER_WITHIN_S = 1.5
_PAGE_BYTES_MAX = 32 * 2**20


async def read_pages(session: aiohttp.ClientSession, urls: str) -> dict[str, str]:
    """The metrics pages of ``urls`` (separated by commas) by address; {} for "".

    Raises:
        OSError: no name resolves, or no activator answers.
    """
    asked = [URL(one.strip()) for one in urls.split(",") if one.strip()]
    found = await asyncio.gather(*(addresses_of(url) for url in asked), return_exceptions=True)
    errors = [one for one in found if isinstance(one, BaseException)]
    places = [
        (url, url.with_host(host))
        for url, hosts in zip(asked, found, strict=True)
        if not isinstance(hosts, BaseException)
        for host in hosts
    ]
    answers = await asyncio.gather(*(_read(session, url, place) for url, place in places), return_exceptions=True)
    errors += [one for one in answers if isinstance(one, BaseException)]
    pages = {str(place): page for (_, place), page in zip(places, answers, strict=True) if isinstance(page, str)}
    for error in errors:
        # Any other exception is a bug and is raised.
        if not isinstance(error, aiohttp.ClientError | OSError):
            raise error
    if errors and not pages:
        raise OSError(f"no activator's metrics can be read: {errors[0]}") from errors[0]
    return pages


async def addresses_of(url: URL) -> list[str]:
    """The addresses of a URL's host, of one family: both families lead to the same process. Raises ``OSError`` if it is unknown."""
    found = await asyncio.get_running_loop().getaddrinfo(url.host or "", url.port or 80, type=socket.SOCK_STREAM)
    family = socket.AF_INET if any(one[0] == socket.AF_INET for one in found) else socket.AF_INET6
    return sorted({str(one[4][0]) for one in found if one[0] == family})


async def _read(session: aiohttp.ClientSession, url: URL, place: URL) -> str:
    limit = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
    async with session.get(place, headers={"Host": url.authority}, timeout=limit) as answer:
        answer.raise_for_status()
        body = bytearray()
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > _PAGE_BYTES_MAX:
                raise OSError(f"the page of {place} is larger than {_PAGE_BYTES_MAX} bytes")
    return body.decode()
