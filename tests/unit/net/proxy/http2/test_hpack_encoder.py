"""HPACK encoding, decoded by the library hpack."""

import hpack
from hypothesis import given
from hypothesis import strategies as st

from serving.net.proxy.http2.hpack_encoder import HeaderEncoder

names = st.sampled_from([b":path", b"accept", b"x", b"grpc-timeout", b"authorization", b"a-name-of-its-own"])
values = st.one_of(st.sampled_from([b"", b"/", b"application/grpc", b"y" * 300]), st.binary(max_size=20))
heads = st.lists(st.tuples(names, values), max_size=6)
sizes = st.sampled_from([None, None, None, 0, 100, 4096, 100_000])


@given(steps=st.lists(st.tuples(heads, sizes), max_size=30))
def test_encoded_heads_are_read_by_reference_decoder(steps: list[tuple[list[tuple[bytes, bytes]], int | None]]) -> None:
    header_encoder, oracle = HeaderEncoder(), hpack.Decoder()
    for head, size in steps:
        if size is not None:
            header_encoder.resize(size)
            oracle.max_allowed_table_size = max(size, oracle.header_table_size)
        key = repr(head).encode()
        block = header_encoder.known.get(key) or header_encoder.pack(head, key)
        assert [(bytes(name), bytes(value)) for name, value in oracle.decode(block, raw=True)] == head


def test_repeated_field_is_indexed_and_encoded_in_one_byte() -> None:
    header_encoder = HeaderEncoder()
    sizes = [len(header_encoder.pack([(b"x-mode", b"quick")])) for _ in range(4)]
    assert sizes[0] == sizes[1] > 8
    assert sizes[2:] == [1, 1]


def test_encoded_head_is_cached_until_dynamic_table_changes() -> None:
    header_encoder = HeaderEncoder()
    header_encoder.pack([(b":status", b"200")], b"key")
    assert header_encoder.known[b"key"] == b"\x88"
    header_encoder.pack([(b"x", b"y")])
    header_encoder.pack([(b"x", b"y")])
    assert header_encoder.known == {}


def test_authorization_and_date_are_not_indexed() -> None:
    header_encoder, oracle = HeaderEncoder(), hpack.Decoder()
    for _ in range(3):
        block = header_encoder.pack([(b"authorization", b"me"), (b"date", b"now")])
        secret, date = oracle.decode(block, raw=True)
        assert (secret.indexable, len(oracle.header_table.dynamic_entries)) == (False, 0)
        assert bytes(date[1]) == b"now"


def test_table_full_of_unused_fields_is_reset() -> None:
    header_encoder, oracle = HeaderEncoder(), hpack.Decoder()
    for number in range(200):
        oracle.decode(header_encoder.pack([(b"x-%d" % (number // 2), b"v" * 50)]), raw=True)
    sizes = []
    for _ in range(300):
        block = header_encoder.pack([(b"new", b"w" * 50)])
        sizes.append(len(block))
        assert [bytes(value) for _, value in oracle.decode(block, raw=True)] == [b"w" * 50]
    assert sizes[0] > 30
    assert sizes[-1] == 1


def test_encoder_table_and_caches_are_bounded() -> None:
    header_encoder, oracle = HeaderEncoder(), hpack.Decoder()
    for number in range(3000):
        head = [(b"x-%d" % (number // 2), b"v" * 50)]
        assert [
            tuple(map(bytes, field)) for field in oracle.decode(header_encoder.pack(head, b"%d" % number), raw=True)
        ] == head
    assert len(header_encoder.known) <= 64
    assert len(header_encoder._seen) <= 256
    assert len(header_encoder._indices) < 60
