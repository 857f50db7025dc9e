"""A vocabulary small enough to read, with what makes vocabularies hard: halves of characters, tokens across
the borders of words, control tokens, two end tokens, unused ids and padding."""

PIECES: list[bytes | None] = [
    *(b"a", b"b", b"ab", b"ba", b"{", b"}", b'"', b":", b",", b'":', b'"a"', b"1", b"23", b" "),
    b"\xc3",  # 14: with 15 it is an e with an acute accent
    b"\xa9",
    b"\xff",  # 16: in no UTF-8
    None,  # 17
    b"<end>",  # 18
    b"<turn>",  # 19
    b"<call>",  # 20: a control token that ends nothing
]
SPECIAL = (18, 19, 20)
EOS = (18, 19)
WIDTH = 32  # eleven entries more than there are tokens
A, B, AB, BA, ONE, LEAD, TAIL, END, TURN, CALL = 0, 1, 2, 3, 11, 14, 15, 18, 19, 20
