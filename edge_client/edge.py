"""The edge put together: draft model, its thread, a channel to a verifier, and generations on them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.acceptance import COUPLED, Acceptance, AcceptanceRule
from common.errors import Code, UnavailableError, UserError
from common.messages import FinishReason
from common.privacy import Privacy
from common.recall import NgramTable
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary, explain_mismatch
from edge_client.alone import DeviceGeneration
from edge_client.channel import VerifierChannel
from edge_client.core.config import SessionConfig
from edge_client.core.pace import DraftPace
from edge_client.core.policies import GrowthPolicy
from edge_client.core.priors import Beliefs, PriorTable
from edge_client.core.session import EdgeSession
from edge_client.draft_worker import DraftWorker
from edge_client.generation import Generation
from edge_client.llama.drafter import LlamaDrafter
from edge_client.llama.model import LlamaModel
from edge_client.llama.runtime import LlamaRuntime
from edge_client.text import TextDecoder
from edge_client.tls import TlsSettings
from edge_client.verifiers.addresses import parse_address

__all__ = ["Edge", "Request", "TextDecoder", "reason_in_words"]

MAX_ATTEMPTS = 8
"""Reconnects in a row that bring no text before a command gives up: some 20 seconds of pauses."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion asked of an edge."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    policy: GrowthPolicy
    recall: bool = False  # also propose what the text repeats, of itself and of this edge's texts before
    drafting: bool = True  # run the draft model
    acceptance: Acceptance = COUPLED  # how the verifier decides


class Edge:
    """Draft model and verifier, ready for generations one after the other. An async context manager.

    Entering asks the verifier what it serves and raises `UserError` with both fingerprints and the first
    differing token if the draft's tokenizer is not the target's. If nobody answers it raises
    `UnavailableError`; with `preview`, by which sessions show the draft's own guess while no server is there,
    it begins nevertheless (`greeting` says so), and the verifier itself refuses a wrong tokenizer later.
    `ngrams` entries of its texts are remembered for those after them: a device has one user.
    """

    def __init__(
        self,
        model: LlamaModel,
        address: str,
        *,
        check: bool = True,
        preview: bool = True,
        ngrams: int = 0,
        priors: PriorTable | None = None,
        tls: TlsSettings | None = None,
        insecure: bool = False,
        privacy: Privacy = Privacy.PADDED,
        pace: DraftPace | None = None,
    ) -> None:
        """`model` drafts if it is a `LlamaRuntime`; else it only knows the tokens. `priors`: how right the
        draft is believed to be before its first text; None: as shipped. `insecure` allows plain text to
        another machine. `privacy`: of the wire, at least. `pace`: of the draft, if it was measured.

        Raises `UserError` for an address that is none, or not allowed.
        """
        self.model = model
        self.vocabulary = Vocabulary(model.token_table())
        self._llama = LlamaDrafter(model) if isinstance(model, LlamaRuntime) else None
        self._drafts = DraftWorker(self._llama) if self._llama is not None else None
        parse_address(address, encrypted=tls is not None, insecure=insecure)
        self._channel = VerifierChannel(address, tls=tls)
        self._check = check
        self._privacy = privacy
        self._ngrams = NgramTable(ngrams) if ngrams else None
        self._name = f"edge-{secrets.token_hex(4)}"  # session ids are to differ between devices
        self._numbers = itertools.count(1)
        self._beliefs = Beliefs(priors)
        self._pace = pace or DraftPace()
        self._session: EdgeSession | None = None  # the newest, from which the next learns
        self.max_positions = 0  # 0: not known, the verifier was not there
        self.greeting = ""  # what a user should know before the first generation
        self._preview = preview
        self._eos = model.eos_ids  # the target's own, once it has told them
        self._rules: tuple[AcceptanceRule, ...] = ()  # that the verifier allows; not known before it says so

    async def __aenter__(self) -> Edge:
        try:
            await self._handshake()
        except BaseException:
            await self._channel.__aexit__()
            raise
        if self._drafts is not None:
            self._drafts.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._drafts is not None:
            self._drafts.__exit__()
        await self._channel.__aexit__()

    def generation(self, request: Request) -> Generation:
        """A new generation; iterate over it. One at a time: the draft model serves one session.

        Raises `UserError` if it is to draft and the draft model is not loaded, or if the verifier has said
        that it does not allow the acceptance rule.
        """
        self._check_rule(request.acceptance)
        drafts = self._drafter() if request.drafting and request.policy.name != "off" else None
        if self._session is not None:
            self._beliefs.learn(self._session.config.sampling, self._session.calibration)
        config = SessionConfig(
            prompt=request.prompt,
            sampling=request.sampling,
            fingerprint=self.vocabulary.fingerprint,
            session_id=f"{self._name}-{next(self._numbers)}",
            recall=request.recall,
            num_read=self._llama.num_common(request.prompt) if self._llama is not None else 0,
            eos_token_ids=self._eos,
            prior=self._beliefs.before(request.sampling),
            acceptance=request.acceptance,
            max_attempts=MAX_ATTEMPTS,
            privacy=self._privacy,
        )
        if drafts is None or not self._preview:
            config = replace(config, patience=None)
        self._session = EdgeSession(config, request.policy, self._ngrams, pace=self._pace)
        return Generation(self._session, self._channel, drafts)

    def alone(self, prompt: Sequence[int], sampling: SamplingParams) -> DeviceGeneration:
        """A text by the draft model alone; iterate over it. One at a time, as `generation`."""
        return DeviceGeneration(self._drafter(), prompt, sampling, self.model.eos_ids)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt. Raises `UserError` if there are none."""
        tokens = tuple(self.model.tokenize(text, True))
        if not tokens:
            raise UserError("the prompt is empty; at least one token is needed")
        return tokens

    def _drafter(self) -> DraftWorker:
        if self._drafts is None:
            raise UserError("no draft model is loaded here; start the edge without --no-drafting")
        return self._drafts

    def _check_rule(self, wanted: Acceptance) -> None:
        if self._rules and wanted.rule not in self._rules:
            allowed = ", ".join(rule.title for rule in self._rules)
            raise UserError(f"the verifier does not allow the acceptance rule {wanted.title}, only {allowed}")

    async def _handshake(self) -> None:
        try:
            description = await self._channel.describe()
        except UnavailableError as error:
            if not self._preview:
                raise
            self.greeting = f"{error}; the draft begins alone"
            return
        self.max_positions = description.max_positions
        self._rules = description.acceptance_rules
        self._eos = description.eos_token_ids
        if not self._check or description.fingerprint == self.vocabulary.fingerprint:
            return
        table = (await self._channel.describe(include_vocabulary=True)).vocabulary
        explanation = explain_mismatch(self.vocabulary, Vocabulary(list(table or ())))
        raise UserError(explanation, Code.FAILED_PRECONDITION)


def reason_in_words(reason: FinishReason | None) -> str:
    """Why a generation ended, for people."""
    words = {
        FinishReason.STOP: "a stop token came",
        FinishReason.LENGTH: "the number of tokens asked for is reached",
        FinishReason.CANCELLED: "it was stopped here",
    }
    return words[reason] if reason is not None else "an error ended it"
