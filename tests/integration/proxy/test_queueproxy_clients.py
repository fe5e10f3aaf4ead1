"""The client address at a queue-proxy: named by a trusted activator, otherwise the address of the peer."""

import pytest

from tests.eventually import until
from tests.integration.proxy.daemons import DAEMONS
from tests.integration.proxy.pods import BELIEVED
from tests.integration.test_activator_clients import PATIENT, TO, floods, ignore

PROVEN = BELIEVED + b"K-Proxy-Request: activator\r\n"


@pytest.mark.parametrize(
    ("attackers", "other"),
    [
        (b"X-Forwarded-For: 8.8.8.8, 1.1.1.1\r\n", b"X-Forwarded-For: 1.1.1.1, 2.2.2.2\r\n"),
        # Behind a trusted proxy the last address is that proxy's.
        (
            b"X-Forwarded-For: 1.1.1.1, 9.9.9.9\r\nK-Client-Address: 1.1.1.1\r\n",
            b"X-Forwarded-For: 9.9.9.9\r\nK-Client-Address: 2.2.2.2\r\n",
        ),
    ],
)
async def test_slots_are_shared_between_clients_named_by_activator(attackers: bytes, other: bytes) -> None:
    async with DAEMONS["queue-proxy"](floods, slots=4, **PATIENT) as running:
        await ignore(running, 12, headers=PROVEN + attackers)
        await until(lambda: running.level() == 12)
        client = await running.client()
        for _ in range(5):
            client.send(b"GET / HTTP/1.1\r\n%b%b%b\r\n" % (TO, PROVEN, other))
            assert (await client.message())[1] == b"ok"


async def test_client_addresses_from_untrusted_sender_are_ignored() -> None:
    async with DAEMONS["queue-proxy"](floods, slots=4, **PATIENT) as running:
        for number in range(12):
            named = b"X-Forwarded-For: 1.1.1.%d\r\nK-Client-Address: 1.1.1.%d\r\nK-Proxy-Request: activator\r\n"
            await ignore(running, 1, headers=named % (number, number))
        await until(lambda: running.level() == 12)
        client = await running.client_of("127.0.0.2")
        client.send(b"GET / HTTP/1.1\r\n%b\r\n" % TO)
        assert (await client.message())[1] == b"ok"
