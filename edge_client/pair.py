"""One pair of a draft model and verifiers in the daemon, built from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.llama.library import offloaded_layers
from common.llama.model import FEWEST_SEQUENCES, MOST_SEQUENCES, LlamaSettings
from common.privacy import Privacy
from common.wire.bounds import model_name
from edge_client.api.daemon_status import PairStatus, verifier_status
from edge_client.api.endpoints import Defaults, TextEndpoints
from edge_client.core.effects import Fallback
from edge_client.draft.draft_models import DraftModels
from edge_client.draft.shared_model import OtherModel
from edge_client.draft.updated_draft import UpdatedDraft
from edge_client.network.client_tls import TlsSettings
from edge_client.network.verifiers import Verifiers
from edge_client.process.paths import path_of
from edge_client.settings import DraftSection, EdgeConfig, VerifierSection
from edge_client.texts.earlier import EarlierTexts
from edge_client.texts.queue import Admission
from edge_client.texts.text_service import FileTexts, TextService, TextSettings


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """Holds the files of a pair's draft that the command line found and read."""

    model: str  # of the draft model, or of one whose tokens are the target's
    small: str = ""  # of a smaller model in front of it; empty: none
    texts: Callable[[bytes], FileTexts] | None = None  # of the user's files, for a token table's fingerprint
    earlier: Path | None = None  # of earlier texts; None: they are in memory alone
    tokens: str = ""  # of the target's tokens; empty: the draft model's are the same
    second: str = ""  # of a draft model beside it; empty: none


@dataclass(frozen=True, slots=True)
class Pair:
    """Holds the parts of one pair."""

    service: TextEndpoints
    drafts: UpdatedDraft | None
    verifiers: Verifiers
    status: PairStatus

    @property
    def name(self) -> str:
        """Return the pair's name; empty for the only one."""
        return self.service.pair

    @property
    def texts(self) -> TextService:
        return self.service.texts


async def open_pair(
    name: str,
    config: EdgeConfig,
    files: DraftFiles,
    models: DraftModels,
    admission: Admission,
    stack: AsyncExitStack,
) -> Pair:
    """Open a pair; `stack` closes it. Raises `UserError` for files and addresses that cannot be used."""
    draft = config.draft
    opened = models.open(
        _llama(files.model, draft),
        drafting=draft.is_loaded,
        seats=draft.seats,
        keep_alive=draft.keep_alive,
        other=_other_model(files, draft),
        tokens=_llama(files.tokens, draft) if files.tokens else None,
        updates=draft.updates,
    )
    section = config.verifier
    tls = verifier_tls(section)
    verifiers = await stack.enter_async_context(
        Verifiers(section.addresses, vocabulary=opened.vocabulary, tls=tls, insecure=section.insecure)
    )
    drafts = opened.model
    file_texts = files.texts(opened.vocabulary.fingerprint) if files.texts and draft.recall else None
    earlier = None
    if draft.recall and draft.remember:
        earlier = EarlierTexts(draft.remember, files.earlier, opened.vocabulary.fingerprint)
        stack.push_async_callback(earlier.close)
    texts = TextService(
        opened.words,
        opened.vocabulary,
        verifiers,
        drafts,
        TextSettings(draft.seats, config.api.max_queue, privacy=Privacy[section.privacy.upper()]),
        admission=admission,
        file_texts=file_texts,
        earlier=earlier,
    )
    if drafts is not None:
        drafts.current.targets.append(lambda: texts.max_positions)
        drafts.wanted = draft.update
        drafts.start()
    defaults = Defaults(
        draft_name=model_name(Path(files.model).stem) if draft.is_loaded else "",
        policy=draft.growth_policy(),
        recall=draft.recall,
        fallback=Fallback(section.fallback),
        template=opened.words.chat_template,
        sampling=config.api.sampling_defaults == "model",
    )
    service = TextEndpoints(texts, defaults, pair=name)
    status = PairStatus(
        texts,
        Fallback(section.fallback),
        draft=lambda: _draft_status(drafts, files.model),
        verifiers=lambda: [verifier_status(each) for each in verifiers.snapshot()],
        proposes=lambda: service.proposes,
    )
    return Pair(service, drafts, verifiers, status)


def _other_model(files: DraftFiles, draft: DraftSection) -> OtherModel | None:
    file, group = (files.second, "beside") if files.second else (files.small, "cascade")
    return OtherModel(_llama(file, draft), group) if file else None


def _llama(file: str, draft: DraftSection) -> LlamaSettings:
    return LlamaSettings(
        path=file,
        n_ctx=draft.context or 0,  # chosen at each loading
        n_seq_max=0 if 2 * draft.seats <= FEWEST_SEQUENCES else MOST_SEQUENCES,
        threads=draft.threads,
        gpu_layers=offloaded_layers(draft.gpu_layers),
    )


def _draft_status(drafts: UpdatedDraft | None, file: str) -> dict[str, Any]:
    if drafts is None:
        return {"state": "off", "file": file}
    model = drafts.current
    return {
        "state": model.state.value,
        "file": model.file,
        "size_bytes": model.size_bytes,
        "seats": model.num_seats,
        "used": model.num_used,
        "unloads_in_s": None if model.seconds_left is None else round(model.seconds_left, 1),
        "error": model.failure,
        **drafts.status(),
    }


def verifier_tls(section: VerifierSection) -> TlsSettings | None:
    """Return the TLS settings; None for plain text. Raise `UserError` for addresses of both kinds."""
    plain = [address for address in section.addresses if section.is_plain(address)]
    if len(plain) == len(section.addresses):
        return None
    if plain:
        raise UserError(
            f"the verifiers {', '.join(plain)} are on this machine, and others are not; give TLS settings, "
            "which then apply to all, or allow plain text to all (verifier.insecure, --verifier-insecure)"
        )
    ca, cert, key, token = (
        path_of(name) for name in (section.tls_ca, section.tls_cert, section.tls_key, section.token_file)
    )
    return TlsSettings(ca, cert, key, section.tls_server_name, token)
