"""Draws arguments for examples: small, and likely to meet a filter's condition."""

from __future__ import annotations

import random
from typing import Final

WORDS: Final = """
    apple banana cherry grape lemon mango melon orange peach pear plum fig kiwi lime olive level
    noon radar civic kayak red green blue yellow black white brown pink gold silver cat dog bird
    fish horse mouse lion tiger bear wolf one two three four five six seven eight nine ten sun moon
    star sky sea river lake hill tree leaf flower house door window table chair book page letter
    word line paper pencil north south east west spring summer autumn winter bread butter cheese
    milk water coffee tea sugar salt pepper eye arm area idea echo alpha beta
    """.split()  # noqa: SIM905  # quotes and commas would make it longer

MOST_WORDS: Final = 4


def integers(rng: random.Random) -> list[int]:
    """Return three to five integers, a few of them negative or equal."""
    return [rng.choice((rng.randint(-12, 12), rng.randint(0, 60))) for _ in range(rng.randint(3, 5))]


def naturals(rng: random.Random) -> list[int]:
    return [rng.choice((rng.randint(0, 12), rng.randint(1, 60))) for _ in range(rng.randint(3, 5))]


def small(rng: random.Random) -> int:
    return rng.randint(1, 6)


def limit(rng: random.Random) -> int:
    return rng.randint(2, 25)


def bound(rng: random.Random) -> int:
    return rng.randint(4, 40)


def natural(rng: random.Random) -> int:
    return rng.randint(0, 120)


def long_number(rng: random.Random) -> int:
    return rng.randint(10, 999_999)


def composite(rng: random.Random) -> int:
    return rng.choice((6, 8, 10, 12, 16, 18, 20, 24, 28, 30, 36, 40, 42, 48, 54, 60, 66, 72, 84, 90))


def word(rng: random.Random) -> str:
    drawn = rng.choice(WORDS)
    return rng.choice((drawn, drawn, drawn, drawn.capitalize(), drawn.upper()))


def words(rng: random.Random) -> list[str]:
    drawn = [word(rng) for _ in range(rng.randint(2, MOST_WORDS))]
    if rng.random() < 0.25:
        drawn.append(str(rng.randint(1, 99)))
    if rng.random() < 0.25:
        drawn.append(drawn[0])
    return drawn


def sentence(rng: random.Random) -> str:
    return " ".join(words(rng))


def text(rng: random.Random) -> str:
    return rng.choice(
        (
            sentence(rng)[:24].strip(),
            word(rng),
            f"{word(rng)}{rng.randint(1, 99)}",
            f"{word(rng)}, {word(rng)}!",
        )
    )


def parts(rng: random.Random) -> str:
    return ",".join(words(rng))


def csv(rng: random.Random) -> str:
    return ",".join(map(str, integers(rng)))


def prefix(rng: random.Random) -> str:
    return rng.choice(WORDS)[: rng.randint(1, 2)]


def mapping(rng: random.Random) -> dict[str, int]:
    return {
        rng.choice(WORDS): rng.choice((rng.randint(0, 12), rng.randint(1, 60)))
        for _ in range(rng.randint(2, 4))
    }


def matrix(rng: random.Random) -> list[list[int]]:
    width = rng.randint(2, 3)
    return [[rng.randint(-9, 20) for _ in range(width)] for _ in range(rng.randint(2, 3))]


def sorted_integers(rng: random.Random) -> list[int]:
    return sorted(integers(rng))


def letters(rng: random.Random) -> str:
    return rng.choice(WORDS)


def brackets(rng: random.Random) -> str:
    return "".join(rng.choice("(()))") for _ in range(rng.randint(2, 6)))


def maybe_balanced(rng: random.Random) -> str:
    return rng.choice((brackets, lambda rng: rng.choice(("()", "(())", "()()", "(()())", ""))))(rng)


def year(rng: random.Random) -> int:
    return rng.choice((1900, 2000, 2023, 2024, rng.randint(1900, 2100)))


def few(rng: random.Random) -> int:
    return rng.randint(0, 9)


def mirrored(rng: random.Random) -> str:
    return rng.choice(
        (letters(rng), rng.choice(("level", "Noon", "radar", "Civic", "kayak", "never odd or even")))
    )


def runs(rng: random.Random) -> str:
    return "".join(rng.choice("abc") * rng.randint(1, 3) for _ in range(rng.randint(1, 4)))


def anagrams(rng: random.Random) -> str:
    return rng.choice(("listen", "silent", "tea", "eat", "ate", "stone", "notes"))


def near_zero(rng: random.Random) -> int:
    return rng.randint(-3, 3)


def below_twelve(rng: random.Random) -> int:
    return rng.randint(0, 11)


def power(rng: random.Random) -> int:
    return rng.choice((1, 2, 3, 4, 8, 9, 10, 16, 25, 27, 64, 81))


def maybe_sorted(rng: random.Random) -> list[int]:
    return rng.choice((integers, sorted_integers))(rng)


def few_sorted(rng: random.Random) -> list[int]:
    return sorted_integers(rng)[:4]


def four_digits(rng: random.Random) -> list[int]:
    return [rng.randint(0, 9) for _ in range(4)]


def six_small(rng: random.Random) -> list[int]:
    return [rng.randint(0, 15) for _ in range(6)]


def six_sorted(rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(12), 6))


def repetitive(rng: random.Random) -> list[int]:
    return [rng.randint(0, 4) for _ in range(7)]


def word_with_p(rng: random.Random) -> str:
    return rng.choice(("pear", "peach", "pepper", "pencil", "plum"))
