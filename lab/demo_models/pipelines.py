"""Draws functions that are a pipeline: a source of elements, a filter, a map of each and a fold of all.

Marks in the tables:

    X  the element                        K  a constant, drawn from the row's pool
    E  what the map makes of an element   T  its type
    N  the elements that are kept         M  what the map makes of them, in words
    G  the generator `E for X in ... if P`; ORIGIN is its part from `for` on, FOR that without the condition P
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Sequence
from typing import Final, NamedTuple

from lab.demo_models import values
from lab.demo_models.functions import Function, Values, singular

LETTERS: Final = "abcdefghilmnoprstu"


class Piece(NamedTuple):
    """A filter or a map: words, code and a part of a name. `type` is what a map makes, if another type."""

    words: str
    code: str
    name: str
    constants: Sequence[object] = ()
    type: str = ""


NOTHING: Final = Piece("", "", "")

NUMBER_ADJECTIVES: Final = (
    Piece("even", "X % 2 == 0", "even"),
    Piece("odd", "X % 2 == 1", "odd"),
    Piece("positive", "X > 0", "positive"),
    Piece("negative", "X < 0", "negative"),
    Piece("nonzero", "X != 0", "nonzero"),
    Piece("two-digit", "10 <= X <= 99", "two_digit"),
)
NUMBER_CLAUSES: Final = (
    Piece("greater than K", "X > K", "above_K", range(1, 61)),
    Piece("less than K", "X < K", "below_K", range(2, 61)),
    Piece("at least K", "X >= K", "from_K", range(2, 61)),
    Piece("at most K", "X <= K", "up_to_K", range(2, 61)),
    Piece("divisible by K", "X % K == 0", "divisible_by_K", range(3, 13)),
    Piece("not divisible by K", "X % K != 0", "not_divisible_by_K", range(2, 13)),
    Piece("not equal to K", "X != K", "except_K", range(1, 61)),
    Piece("between K and 20", "K <= X <= 20", "between_K_and_20", range(1, 20)),
    Piece("between K and 50", "K <= X <= 50", "between_K_and_50", range(1, 50)),
    Piece("greater than limit", "X > limit", "above_limit"),
    Piece("less than limit", "X < limit", "below_limit"),
    Piece("divisible by divisor", "X % divisor == 0", "divisible"),
)
NUMBER_MAPS: Final = (
    Piece("the squares of the N", "X ** 2", "squares"),
    Piece("the cubes of the N", "X ** 3", "cubes"),
    Piece("the absolute values of the N", "abs(X)", "absolute"),
    Piece("the last digits of the N", "abs(X) % 10", "last_digits"),
    Piece("the halves, rounded down, of the N", "X // 2", "halves"),
    Piece("the doubles of the N", "2 * X", "doubled"),
    Piece("the remainders of the N divided by K", "X % K", "remainders", range(3, 21)),
    Piece("the N, each multiplied by K", "X * K", "times_K", range(3, 41)),
    Piece("the N, each increased by K", "X + K", "plus_K", range(1, 61)),
    Piece("the N, each decreased by K", "X - K", "minus_K", range(1, 61)),
    Piece("the N as strings", "str(X)", "strings", (), "str"),
)
WORD_ADJECTIVES: Final = (
    Piece("upper-case", "X.isupper()", "upper"),
    Piece("lower-case", "X.islower()", "lower"),
    Piece("palindromic", "X == X[::-1]", "palindromic"),
    Piece("numeric", "X.isdigit()", "numeric"),
)
WORD_CLAUSES: Final = (
    Piece("longer than K letters", "len(X) > K", "longer_than_K", range(2, 9)),
    Piece("shorter than K letters", "len(X) < K", "shorter_than_K", range(3, 9)),
    Piece("exactly K letters long", "len(X) == K", "of_length_K", range(3, 9)),
    Piece("not equal to 'K'", 'X != "K"', "except_K", ("apple", "the", "and", "dog", "cat", "red", "blue")),
)
WORD_VERBS: Final = (
    Piece("start with 'K'", 'X.startswith("K")', "starting_with_K", LETTERS),
    Piece("end with 'K'", 'X.endswith("K")', "ending_with_K", LETTERS),
    Piece("contain 'K'", '"K" in X', "with_K", LETTERS),
    Piece("do not contain 'K'", '"K" not in X', "without_K", LETTERS),
    Piece("start with a vowel", 'X[0] in "aeiou"', "starting_with_vowel"),
    Piece("start and end with the same letter", "X[0] == X[-1]", "same_ends"),
    Piece("have an even number of letters", "len(X) % 2 == 0", "even_length"),
    Piece("start with prefix", "X.startswith(prefix)", "with_prefix"),
)
WORD_MAPS: Final = (
    Piece("the N, each in upper case", "X.upper()", "upper"),
    Piece("the N, each in lower case", "X.lower()", "lower"),
    Piece("the N, each with a capital first letter", "X.capitalize()", "capitalized"),
    Piece("the N, each spelled backwards", "X[::-1]", "backwards"),
    Piece("the first letters of the N", "X[0]", "first_letters"),
    Piece("the last letters of the N", "X[-1]", "last_letters"),
    Piece("the first K letters of the N", "X[:K]", "first_K_letters", range(2, 6)),
    Piece("the last K letters of the N", "X[-K:]", "last_K_letters", range(2, 6)),
    Piece("the N, each without its first letter", "X[1:]", "tails"),
    Piece("the N, each followed by 'K'", 'X + "K"', "with_suffix", "!?.;:"),
    Piece("the N, each repeated K times", "X * K", "repeated", range(2, 5)),
    Piece("the N, each with every 'K' replaced by 'o'", 'X.replace("K", "o")', "replaced_K", "aeiu"),
    Piece("the N, each without the letter 'K'", 'X.replace("K", "")', "dropped_K", LETTERS),
    Piece("the lengths of the N", "len(X)", "lengths", (), "int"),
    Piece("the numbers of the letter 'K' in the N", 'X.count("K")', "counts_of_K", LETTERS, "int"),
)
CHARACTER_KINDS: Final = (
    Piece("characters", "", "characters"),
    Piece("vowels", 'X in "aeiou"', "vowels"),
    Piece("letters", "X.isalpha()", "letters"),
    Piece("digits", "X.isdigit()", "digits"),
    Piece("upper-case letters", "X.isupper()", "upper_letters"),
    Piece("lower-case letters", "X.islower()", "lower_letters"),
    Piece("consonants", 'X.isalpha() and X not in "aeiou"', "consonants"),
    Piece("characters other than spaces", 'X != " "', "non_spaces"),
    Piece("characters other than vowels", 'X not in "aeiou"', "non_vowels"),
    Piece("characters other than 'K'", 'X != "K"', "except_K", LETTERS),
    Piece("letters after 'K' in the alphabet", 'X.isalpha() and X > "K"', "after_K", LETTERS),
)
CHARACTER_MAPS: Final = (
    Piece("the N, each in upper case", "X.upper()", "upper"),
    Piece("the N, each in lower case", "X.lower()", "lower"),
    Piece("the N, each written twice", "X * 2", "doubled"),
    Piece("the N, each followed by 'K'", 'X + "K"', "followed", "-._,"),
)
DIGIT_MAP: Final = Piece("the values of the N", "int(X)", "values", (), "int")


class Source(NamedTuple):
    """Where elements come from. `NOUN` is one of `pool`, or of the nouns of the kind of pipeline, and `ITEM`
    its singular. `words` and `spoken` say `N` where the elements stand. `condition` makes an item an element.
    """

    key: str
    words: str
    spoken: str
    parameters: str
    item: str
    loops: tuple[str, ...]
    nouns: str
    draw: Values
    pool: tuple[str, ...] = ()
    condition: str = ""

    def named(self, noun: str) -> Source:
        """Return the source with a noun filled in."""
        marks = {"NOUN": noun, "ITEM": singular(noun)}
        words, spoken, parameters, item, nouns = (
            replaced(each, **marks)
            for each in (self.words, self.spoken, self.parameters, self.item, self.nouns)
        )
        loops = tuple(replaced(each, **marks) for each in self.loops)
        return self._replace(
            words=words, spoken=spoken, parameters=parameters, item=item, loops=loops, nouns=nouns
        )


class Fold(NamedTuple):
    """What is made of all elements, as a loop or as an expression, each with words of its own.

    `loop`: words, lines before, in and after. `expression`: words, lines. `takes`: the types that `E` can
    have. A `bare` fold takes no map.
    """

    name: str
    type: str
    takes: str
    loop: tuple[str, str, str, str] | None = None
    expression: tuple[str, str] | None = None
    bare: bool = False


ANY: Final = "int str"
FOLDS: Final = (
    Fold(
        "sum",
        "int",
        "int",
        ("Compute the sum of M", "total = 0", "total += E", "return total"),
        ("Return the sum of M", "return sum(G)"),
    ),
    Fold(
        "product",
        "int",
        "int",
        ("Compute the product of M", "product = 1", "product *= E", "return product"),
    ),
    Fold(
        "count",
        "int",
        ANY,
        ("Count the N", "count = 0", "count += 1", "return count"),
        ("Return the number of N", "return len([G])"),
        bare=True,
    ),
    Fold(
        "largest",
        "T | None",
        "int",
        (
            "Find the largest of M, or None if there are none",
            "largest = None",
            "if largest is None or E > largest:\n    largest = E",
            "return largest",
        ),
        ("Return the largest of M, or None if there are none", "return max((G), default=None)"),
    ),
    Fold(
        "smallest",
        "T | None",
        "int",
        (
            "Find the smallest of M, or None if there are none",
            "smallest = None",
            "if smallest is None or E < smallest:\n    smallest = E",
            "return smallest",
        ),
        ("Return the smallest of M, or None if there are none", "return min((G), default=None)"),
    ),
    Fold(
        "spread",
        "int",
        "int",
        None,
        (
            "Return the difference between the largest and the smallest of M, or 0 if there are none",
            "found = [G]\nif not found:\n    return 0\nreturn max(found) - min(found)",
        ),
    ),
    Fold(
        "average",
        "float",
        "int",
        (
            "Compute the average of M, or 0.0 if there are none",
            "total = 0\ncount = 0",
            "total += E\ncount += 1",
            "return total / count if count else 0.0",
        ),
        (
            "Return the average of M, or 0.0 if there are none",
            "found = [G]\nif not found:\n    return 0.0\nreturn sum(found) / len(found)",
        ),
    ),
    Fold(
        "first",
        "T | None",
        ANY,
        ("Find the first of M, or None if there are none", "", "return E", "return None"),
    ),
    Fold(
        "last",
        "T | None",
        ANY,
        ("Find the last of M, or None if there are none", "last = None", "last = E", "return last"),
    ),
    Fold("any", "bool", ANY, None, ("Return whether there are any N", "return any(P FOR)"), bare=True),
    Fold(
        "list",
        "list[T]",
        ANY,
        ("Collect M in a list", "result = []", "result.append(E)", "return result"),
        ("Return a list of M", "return [G]"),
    ),
    Fold(
        "reversed",
        "list[T]",
        ANY,
        None,
        ("Return a list of M, in reverse order", "found = [G]\nreturn found[::-1]"),
    ),
    Fold("sorted", "list[T]", ANY, None, ("Return M, in ascending order", "return sorted(G)")),
    Fold(
        "descending",
        "list[T]",
        ANY,
        None,
        ("Return M, in descending order", "return sorted((G), reverse=True)"),
    ),
    Fold(
        "distinct",
        "list[T]",
        ANY,
        (
            "Collect M, without duplicates and in order of appearance",
            "result = []",
            "if E not in result:\n    result.append(E)",
            "return result",
        ),
        ("Return M, without duplicates and sorted", "return sorted(set(G))"),
    ),
    Fold(
        "running_sum",
        "list[int]",
        "int",
        (
            "Collect the running totals of M",
            "total = 0\nresult = []",
            "total += E\nresult.append(total)",
            "return result",
        ),
    ),
    Fold(
        "counts",
        "dict[T, int]",
        ANY,
        (
            "Count how often each of M appears",
            "counts = {}",
            "counts[E] = counts.get(E, 0) + 1",
            "return counts",
        ),
    ),
    Fold("first_two", "list[T]", ANY, None, ("Return the first two of M", "return [G][:2]")),
    Fold("last_two", "list[T]", ANY, None, ("Return the last two of M", "return [G][-2:]")),
    Fold(
        "largest_three",
        "list[T]",
        "int",
        None,
        ("Return the three largest of M, the largest first", "return sorted((G), reverse=True)[:3]"),
    ),
    Fold("joined", "str", "str", None, ("Return M, joined by commas", 'return ",".join(G)')),
    Fold("spaced", "str", "str", None, ("Return M, joined by spaces", 'return " ".join(G)')),
    Fold("dashed", "str", "str", None, ("Return M, joined by dashes", 'return "-".join(G)')),
    Fold(
        "text",
        "str",
        "str",
        ("Join M to one string", 'result = ""', "result += E", "return result"),
        ("Return M as one string", 'return "".join(G)'),
    ),
    Fold(
        "longest",
        "str",
        "str",
        (
            "Find the longest of M, or an empty string if there are none",
            'longest = ""',
            "if len(E) > len(longest):\n    longest = E",
            "return longest",
        ),
        (
            "Return the longest of M, or an empty string if there are none",
            'return max((G), key=len, default="")',
        ),
    ),
    Fold(
        "by_length", "list[str]", "str", None, ("Return M, sorted by length", "return sorted((G), key=len)")
    ),
    Fold(
        "mapping",
        "dict[str, int]",
        "str",
        None,
        ("Return a dictionary that maps each of M to its length", "return {E: len(E) ORIGIN}"),
    ),
)
WORDY: Final = frozenset(("longest", "by_length", "mapping"))
"""Folds about lengths, which a single character does not have."""

NUMBER_NOUNS: Final = (
    "numbers", "values", "scores", "ages", "points", "marks", "sizes", "weights", "prices", "heights",
)  # fmt: skip
SIGNED_NOUNS: Final = frozenset(("numbers", "values", "points"))
WORD_NOUNS: Final = ("words", "names", "labels", "tags", "keys", "titles", "colors", "fruits")
DICTIONARIES: Final = ("prices", "scores", "ages", "counts", "stock")

NUMBER_LIST: Final = Source(
    "list", "N", "N in a list", "NOUN: list[int]", "ITEM", ("ITEM in NOUN",), "NOUN", values.naturals
)
NUMBER_SOURCES: Final = (
    *(NUMBER_LIST,) * 4,
    Source(
        "range", "N from 1 to n", "N from 1 to n", "n: int", "number", ("number in range(1, n + 1)",),
        "numbers", values.bound,
    ),
    Source(
        "below", "N below n", "N below n", "n: int", "number", ("number in range(n)",),
        "numbers", values.bound,
    ),
    Source(
        "digits", "N of n", "N of a number", "n: int", "digit", ("digit in map(int, str(n))",),
        "digits", values.long_number,
    ),
    Source(
        "divisors", "N of n", "N of a number", "n: int", "divisor", ("divisor in range(1, n + 1)",),
        "divisors", values.composite, condition="n % divisor == 0",
    ),
    Source(
        "dict", "N of the dictionary NOUN", "N of a dictionary", "NOUN: dict[str, int]", "value",
        ("value in NOUN.values()",), "values", values.mapping, DICTIONARIES,
    ),
    Source(
        "rows", "N in all rows", "N in all rows of a table", "NOUN: list[list[int]]", "number",
        ("row in NOUN", "number in row"), "numbers", values.matrix, ("rows", "grid", "matrix", "table"),
    ),
    Source(
        "csv", "N in a comma-separated text", "N in a comma-separated text", "text: str", "number",
        ('number in map(int, text.split(","))',), "numbers", values.csv,
    ),
)  # fmt: skip
WORD_LIST: Final = Source(
    "list", "N", "N in a list", "NOUN: list[str]", "ITEM", ("ITEM in NOUN",), "NOUN", values.words, WORD_NOUNS
)
WORD_SPLIT: Final = Source(
    "split", "N of the NOUN", "N of a NOUN", "NOUN: str", "word", ("word in NOUN.split()",),
    "words", values.sentence, ("text", "sentence", "message", "line"),
)  # fmt: skip
WORD_SOURCES: Final = (
    *(WORD_LIST,) * 3,
    *(WORD_SPLIT,) * 2,
    Source(
        "dict", "N of the dictionary NOUN", "N of a dictionary", "NOUN: dict[str, int]", "key",
        ("key in NOUN",), "keys", values.mapping, DICTIONARIES,
    ),
    Source(
        "parts", "N of a comma-separated text", "N of a comma-separated text", "text: str", "part",
        ('part in text.split(",")',), "parts", values.parts,
    ),
)  # fmt: skip
CHARACTERS: Final = Source(
    "characters", "N of the NOUN", "N of a NOUN", "NOUN: str", "character", ("character in NOUN",),
    "characters", values.text, ("text", "sentence", "message", "phrase", "line"),
)  # fmt: skip


def draw_pipeline(rng: random.Random) -> Function:
    """Return one pipeline; its combination leaves out nouns and the names of parameters."""
    return rng.choice((*(number_pipeline,) * 3, *(word_pipeline,) * 2, character_pipeline))(rng)


def number_pipeline(rng: random.Random) -> Function:
    source, noun = rng.choice(NUMBER_SOURCES), rng.choice(NUMBER_NOUNS)
    if source is NUMBER_LIST and noun in SIGNED_NOUNS:
        source = source._replace(draw=values.integers)
    source = source.named(rng.choice(source.pool) if source.pool else noun)
    adjective = filled(rng, pick(rng, NUMBER_ADJECTIVES, 0.4))
    clause = led_by("that are", filled(rng, pick(rng, NUMBER_CLAUSES, 0.5)))
    return assemble(rng, source, adjective, clause, filled(rng, pick(rng, NUMBER_MAPS, 0.45)), "int")


def word_pipeline(rng: random.Random) -> Function:
    source = rng.choice(WORD_SOURCES)
    source = source.named(rng.choice(source.pool) if source.pool else "")
    adjective = pick(rng, WORD_ADJECTIVES, 0.25)
    if rng.random() < 0.4:
        clause = led_by("that are", filled(rng, pick(rng, WORD_CLAUSES, 0.9)))
    else:
        clause = led_by("that", filled(rng, pick(rng, WORD_VERBS, 0.8)))
    return assemble(rng, source, adjective, clause, filled(rng, pick(rng, WORD_MAPS, 0.5)), "str")


def character_pipeline(rng: random.Random) -> Function:
    source = CHARACTERS.named(rng.choice(CHARACTERS.pool))
    kind = filled(rng, rng.choice(CHARACTER_KINDS))
    if kind.name == "digits" and rng.random() < 0.5:
        mapping = DIGIT_MAP
    else:
        mapping = filled(rng, pick(rng, CHARACTER_MAPS, 0.4))
    return assemble(rng, source, NOTHING, kind, mapping, "str", noun_words=kind.words)


def led_by(words: str, clause: Piece) -> Piece:
    """Return a clause with the words that join it to its noun."""
    return clause._replace(words=f"{words} {clause.words}" if clause.words else "")


def pick(rng: random.Random, table: Sequence[Piece], chance: float) -> Piece:
    """Return a row, or nothing."""
    return rng.choice(table) if rng.random() < chance else NOTHING


def filled(rng: random.Random, piece: Piece) -> Piece:
    """Return the row with a constant in place of `K`."""
    if not piece.constants:
        return piece
    constant = str(rng.choice(piece.constants))
    name = constant if constant.isalnum() else "mark"
    return Piece(
        piece.words.replace("K", constant),
        piece.code.replace("K", constant),
        piece.name.replace("K", name),
        (),
        piece.type,
    )


EXTRA: Final[dict[str, tuple[str, Values]]] = {
    "limit": ("limit: int", values.limit),
    "divisor": ("divisor: int", values.small),
    "prefix": ("prefix: str", values.prefix),
}
"""Parameters that a filter can ask for."""


def assemble(
    rng: random.Random,
    source: Source,
    adjective: Piece,
    clause: Piece,
    mapping: Piece,
    type_: str,
    noun_words: str = "",
) -> Function:
    """Return the function that folds what is drawn, with a fold that fits."""
    made = mapping.type or type_
    folds = [
        fold
        for fold in FOLDS
        if made in fold.takes
        and not (fold.bare and mapping.code)
        and not (source.key == "characters" and fold.name in WORDY)
        and not (
            fold.name == "any"
            and (source.condition or source.key == "rows" or not (adjective.code or clause.code))
        )
        and not (fold.name in ("text", "joined") and source.key == "digits")
    ]
    fold = rng.choice(folds)
    as_loop = fold.expression is None or (fold.loop is not None and rng.random() < 0.5)
    noun = noun_words or source.nouns
    kept = " ".join(filter(None, (adjective.words, noun)))
    conditions = [piece for piece in (source.condition, adjective.code, clause.code) if piece]
    condition = " and ".join(conditions).replace("X", source.item)
    element = (mapping.code or "X").replace("X", source.item)
    if as_loop:
        assert fold.loop is not None
        template, body = fold.loop[0], loop_body(source, condition, fold.loop[1:])
    else:
        assert fold.expression is not None
        template, body = fold.expression
        body = expression_body(source, condition, element, body)
    body = replaced(body, E=element)

    def say(where: str) -> str:
        elements = " ".join(filter(None, (replaced(where, N=kept), "" if noun_words else clause.words)))
        return replaced(template, M=replaced(mapping.words or "the N", N=elements), N=elements)

    returns = fold.type.replace("T", made)
    parameters, drawn = source.parameters, [source.draw]
    for word, (declared, draws) in EXTRA.items():
        if f" {word}" in clause.code or f"({word})" in clause.code:
            parameters, drawn = f"{parameters}, {declared}", [*drawn, draws]
    names = [
        fold.name,
        mapping.name,
        adjective.name,
        clause.name if noun_words else noun,
        "" if noun_words else clause.name,
    ]
    name = "_".join(filter(None, names))
    if len(name) > 32 or rng.random() < 0.3:
        name = "_".join((fold.name, clause.name if noun_words else noun))
    combination = "|".join((source.key, adjective.code, clause.code, mapping.code, fold.name, str(as_loop)))
    return Function(
        name=name,
        parameters=parameters,
        returns=returns,
        description=say(source.words),
        spoken=say(source.spoken),
        body=body,
        combination=combination,
        values=tuple(drawn),
    )


def loop_body(source: Source, condition: str, lines: tuple[str, str, str]) -> str:
    """Return a loop with `lines` before, in and after it; a condition joins one that the fold itself has."""
    before, inside, after = lines
    test, _, rest = inside.partition(":\n")
    if condition and rest:
        test = test.removeprefix("if ")
        inside = f"if {condition} and {f'({test})' if ' or ' in test else test}:\n{rest}"
    elif condition:
        inside = f"if {condition}:\n" + textwrap.indent(inside, "    ")
    for header in reversed(source.loops):
        inside = f"for {header}:\n" + textwrap.indent(inside, "    ")
    return "\n".join(filter(None, (before, inside, after)))


def expression_body(source: Source, condition: str, element: str, template: str) -> str:
    """Return `template` over the elements; over the source itself where none is left out or changed."""
    loops = " ".join(f"for {header}" for header in source.loops)
    origin = f"{loops} if {condition}" if condition else loops
    if element == source.item and not condition and len(source.loops) == 1:
        whole = source.loops[0].partition(" in ")[2]
        template = (
            template.replace("[G]", f"list({whole})")
            .replace("(G),", f"{whole},")
            .replace("(G)", f"({whole})")
        )
    return replaced(template, G=f"E {origin}", ORIGIN=origin, FOR=loops, P=condition)


def replaced(template: str, **by: str) -> str:
    """Return `template` with each marker, as a word of its own, replaced."""
    return re.sub(r"\b(" + "|".join(by) + r")\b", lambda match: by[match[1]], template)
