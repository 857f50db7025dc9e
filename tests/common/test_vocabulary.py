"""Tables match if and only if every id stands for the same token; the message says where they do not."""

from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.vocabulary import MAX_TEXT_BYTES, MAX_TOKENS, Vocabulary, differing_ids, explain_mismatch
from tests import wording

TABLES = st.lists(st.none() | st.binary(max_size=3), max_size=6)


@given(TABLES, st.integers(0, 5))
def test_padding_does_not_matter(table: list[bytes | None], padding: int) -> None:
    plain, padded = Vocabulary(table), Vocabulary([*table, *[None] * padding])
    assert plain.fingerprint == padded.fingerprint
    assert not differing_ids(plain, padded)


@given(TABLES, TABLES)
def test_fingerprints_agree_where_no_id_differs(one: list[bytes | None], other: list[bytes | None]) -> None:
    edge, verifier = Vocabulary(one), Vocabulary(other)
    assert (edge.fingerprint == verifier.fingerprint) == (not differing_ids(edge, verifier))


def test_texts_do_not_run_into_each_other() -> None:
    tables: tuple[list[bytes | None], ...] = (
        [b"ab", b"c"],
        [b"a", b"bc"],
        [b"abc"],
        [b"abc", b""],
        [None, b"abc"],
        [],
    )
    assert len({Vocabulary(table).fingerprint for table in tables}) == len(tables)


def test_the_fingerprint_never_changes() -> None:
    """Two releases must agree; the number stands in `PERSON`."""
    assert Vocabulary([b"a", None, "é".encode()]).fingerprint.hex() == (
        "96f5595e7b2c5902edfa7f179dd5ee194ae29d1b0c2134d86aa5c7cb15b3afee"
    )


def test_a_mismatch_is_explained_in_a_sentence() -> None:
    edge, verifier = Vocabulary([b"a", b"\xff b"]), Vocabulary([b"a", None, b"c"])
    sentence = explain_mismatch(edge, verifier)
    assert r"id 1 is '\\xff b' in the draft and no token in the target, the first of 2" in sentence
    assert edge.fingerprint.hex() in sentence
    assert verifier.fingerprint.hex() in sentence


def test_tables_are_bounded() -> None:
    with wording.raises(UserError):
        Vocabulary([None] * (MAX_TOKENS + 1))
    with wording.raises(UserError):
        Vocabulary([b"", b"x" * (MAX_TEXT_BYTES + 1)])
