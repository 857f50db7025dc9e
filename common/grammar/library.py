"""What of llguidance is used, and within which limits. It is imported where it is used: most runs need
none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from common.errors import UserError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


def matcher_class() -> type[LLMatcher]:
    """Raises `UserError` if llguidance is not installed."""
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise UserError(
            "grammars need llguidance, which is not installed here; pip install 'forerun[edge]' or "
            "'forerun[verifier]'"
        ) from error
    return LLMatcher


def is_installed() -> bool:
    """Whether llguidance is there; nothing is imported."""
    return find_spec("llguidance") is not None


def limits() -> LLParserLimits:
    """What one grammar may cost. A verifier compiles what strangers send, and all its sessions wait for a
    mask. Items bound a mask: ambiguous grammars take some 20 ms at most, where rows of 2,000 items took
    seconds. A schema of n optional properties has rows of some 2 n items. States, about half a kB each, bound
    the memory of a grammar's lexer. Nothing here bounds a compile (`trial`)."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=400,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=10_000,
        max_grammar_size=100_000,
        verbose_errors=False,  # they would bring the parser's state and a backtrace
    )


def new_matcher(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at its beginning. Raises `UserError`, in the library's words, for a grammar that it refuses:
    its constructor never raises, and what is wrong must be asked."""
    matcher = matcher_class()(tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise refused(matcher.get_error())
    return matcher


def refused(words: str) -> UserError:
    """What is raised for a grammar with which llguidance finds this fault."""
    first = words.strip().removesuffix("<non-verbose/>").strip()
    return UserError(f"the grammar is refused: {first}")
