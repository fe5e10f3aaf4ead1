"""The bytes of a TLS connection are equal for any chunks; modified bytes are rejected."""

import contextlib
import itertools
import ssl

from hypothesis import given
from hypothesis import strategies as st

from serving.net.proxy.tls.certificate import load_certificate
from serving.net.proxy.tls.records import Records
from tests.integration.tls_stage import client_context, issued

SERVER = load_certificate("h", issued("h")).context
CLIENT = client_context()
CLIENT_1_2 = client_context()
CLIENT_1_2.maximum_version = ssl.TLSVersion.TLSv1_2

contents = st.lists(st.binary(min_size=1, max_size=40_000), max_size=4)
cuts = st.lists(st.integers(0, 200_000), max_size=6)
contexts = st.sampled_from([CLIENT, CLIENT_1_2])


class Client:
    """An in-memory client after its handshake."""

    def __init__(self, context: ssl.SSLContext, records: Records) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.incoming, self.outgoing, server_hostname="h")
        is_over = False
        while not is_over:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.ssl.do_handshake()
            records.put(self.outgoing.read())
            is_over = records.shake()
            self.incoming.write(records.outgoing.read())
        self.ssl.do_handshake()

    def sent(self, pieces: list[bytes]) -> bytes:
        """The encrypted bytes of these pieces and a close_notify."""
        for piece in pieces:
            self.ssl.write(piece)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.ssl.unwrap()
        return self.outgoing.read()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(bounds)]


def read_all(records: Records) -> tuple[bytes, bool]:
    """The readable bytes, and whether the end has been reached."""
    result = b""
    while data := records.read():
        result += data
    return result, data is not None


@given(contexts, contents, cuts, st.integers(0, 6))
def test_tls_records_yield_equal_bytes_for_any_chunks(
    context: ssl.SSLContext, pieces: list[bytes], places: list[int], close_after: int
) -> None:
    records = Records(SERVER)
    client = Client(context, records)
    data, is_over = b"", False
    for number, part in enumerate(cut(client.sent(pieces), places)):
        records.put(part)
        if number == close_after:
            # close_notify does not lose received but unread bytes.
            records.close_notify()
        more, is_over = read_all(records)
        data += more
    assert data == b"".join(pieces)
    assert is_over
    assert records.read() == b""


@given(contexts, st.binary(min_size=1, max_size=20_000), st.integers(0, 200_000), st.integers(1, 255))
def test_corrupted_tls_record_is_never_passed_on(
    context: ssl.SSLContext, content: bytes, place: int, flip: int
) -> None:
    records = Records(SERVER)
    wire = bytearray(Client(context, records).sent([content]))
    wire[place % len(wire)] ^= flip
    records.put(bytes(wire))
    data = b""
    with contextlib.suppress(ssl.SSLError):
        data, _ = read_all(records)
    assert content.startswith(data)


@given(contexts, contents)
def test_tls_client_reads_the_written_bytes(context: ssl.SSLContext, pieces: list[bytes]) -> None:
    records = Records(SERVER)
    client = Client(context, records)
    for piece in pieces:
        client.incoming.write(records.write(piece))
    client.incoming.write(records.close_notify())
    result = b""
    while data := client.ssl.read(65_536):
        result += data
    assert result == b"".join(pieces)
    assert records._incoming.pending == 0
