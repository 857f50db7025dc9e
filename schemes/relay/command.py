"""Implements `forerun relay`: a verifier near the edge whose own target is remote."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from common.privacy import LEVELS, Privacy
from common.wire.free_port import check_free
from common.wire.grpc_options import host_and_port, is_loopback
from edge_client.network.addresses import parse_address
from edge_client.process.paths import find_paths

if TYPE_CHECKING:
    from edge_client.network.client_tls import TlsSettings

DESCRIPTION = """\
Serve edges as a verifier does, and draft for the verifier behind with a middle model: larger than the edges'
drafts, smaller than the target, with the target's tokens. The text is the verifier's own (docs/schemes.md).

  forerun relay --verifier verifier.example.org:50051 --tls --model middle.gguf --listen 127.0.0.1:50052
  forerun edge --verifier 127.0.0.1:50052 --draft draft.gguf"""

SERVING = "serving"
TLS = "TLS"


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """Declares trusted CAs, the edge's own identity, and whether plain text may leave the machine."""

    tls: bool = setting(False, "use TLS; the system's CAs are trusted unless --tls-ca is given", group=TLS)
    tls_ca: Path | None = setting(None, "PEM file with the verifier's CA", "FILE", group=TLS)
    tls_cert: Path | None = setting(None, "PEM file with this edge's certificate", "FILE", group=TLS)
    tls_key: Path | None = setting(None, "PEM file with the private key of --tls-cert", "FILE", group=TLS)
    tls_name: str = setting("", "name in the verifier's certificate (default: the host)", "NAME", group=TLS)
    token_file: Path | None = setting(None, "file with a token, sent only over TLS", "FILE", group=TLS)
    insecure: bool = setting(False, "allow unencrypted traffic to another machine", group=TLS)

    @property
    def channel_tls(self) -> TlsSettings | None:
        """Return the TLS settings; None for plain text. Raise `UserError`."""
        from edge_client.network.client_tls import TlsSettings

        given = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_name, self.token_file)
        if not (self.tls or any(given)):
            return None
        if self.insecure:
            raise UserError("--insecure allows plain text, but other options request TLS; give one")
        return TlsSettings(*given)


@dataclass(frozen=True, kw_only=True)
class RelayOptions(TlsOptions):
    """Declares the verifier behind, the middle model, and the port for edges."""

    verifier: str = setting(REQUIRED, "address of `forerun verify`, or of another relay", "HOST:PORT")
    model: str = setting(
        REQUIRED, "middle model: GGUF file or hf://organisation/repository/file.gguf", "PATH"
    )
    listen: str = setting("127.0.0.1:50052", "address for edges", "HOST:PORT", group=SERVING)
    serve_cert: Path | None = setting(None, "PEM file with the relay's certificate", "FILE", group=SERVING)
    serve_key: Path | None = setting(None, "PEM file with the key of --serve-cert", "FILE", group=SERVING)
    grace: float = setting(
        10.0,
        "seconds that edges have to leave after SIGTERM",
        "SECONDS",
        group=SERVING,
    )
    privacy: str = setting(
        Privacy.PADDED.title,
        "least privacy of message sizes, both ways (docs/guarantees.md)",
        choices=LEVELS,
    )
    seats: int = setting(
        8,
        "texts that the middle model drafts at once; further ones pass without it",
        "N",
    )
    threads: int = setting(0, "threads of the middle model; 0: all but one", "N", low=0)
    gpu_layers: int | None = setting(
        None,
        "layers of the middle model on an accelerator; auto: all, if llama.cpp was built for one; -1: all",
        "N",
        unset="auto",
        low=-1,
    )
    context: int | None = setting(
        None,
        "KV memory of the middle model, in tokens over all texts together; auto: the longest text of both "
        "models, in at most a quarter of the free memory",
        "N",
        unset="auto",
        low=1,
    )
    json: bool = setting(False, "print JSON instead of text")


def add_parser(commands: Any) -> None:
    words = "serve edges nearby and draft for a remote verifier with a middle model"
    add_command(commands, "relay", words, _run, RelayOptions, DESCRIPTION)


def _run(options: RelayOptions) -> int:
    tls = options.channel_tls
    parse_address(options.verifier, encrypted=tls is not None, insecure=options.insecure)
    if (options.serve_cert is None) != (options.serve_key is None):
        raise UserError("--serve-cert and --serve-key belong together; give both or neither")
    check_free("--listen", options.listen)
    asyncio.run(_serve(options))
    return 0


async def _serve(options: RelayOptions) -> None:
    from cloud_verifier.identity.server_tls import ServerTls
    from common.llama.library import offloaded_layers
    from common.llama.model import LlamaSettings
    from edge_client.draft.draft_models import DraftModels
    from edge_client.network.channel import VerifierChannel
    from schemes.relay.service import RelayServer, RelayService, RelaySettings

    llama = LlamaSettings(
        options.model,
        n_ctx=options.context or 0,  # chosen when the model is loaded
        threads=options.threads,
        gpu_layers=offloaded_layers(options.gpu_layers),
    )
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        models = DraftModels(find_paths(os.environ), stack)
        opened = models.open(llama, drafting=True, seats=options.seats, keep_alive=-1.0)
        assert opened.model is not None, "asked for drafting"
        await opened.model.load()
        tls = options.channel_tls
        channel = await stack.enter_async_context(VerifierChannel(options.verifier, tls=tls))
        settings = RelaySettings(_forwards_tokens(options), Privacy[options.privacy.upper()])
        service = RelayService(channel, opened.model, opened.vocabulary, settings)
        papers = None
        if options.serve_cert is not None and options.serve_key is not None:
            papers = ServerTls(options.serve_cert, options.serve_key)
        server = await stack.enter_async_context(RelayServer(service, options.listen, papers))
        _announce(options, f"{options.listen.rpartition(':')[0]}:{server.port}")
        await stop.wait()
        await server.drain(options.grace)


def _forwards_tokens(options: RelayOptions) -> bool:
    """Return whether callers' tokens go on to the verifier: not beside the relay's own, nor in plain text."""
    place = host_and_port(options.verifier)
    private = options.channel_tls is not None or (place is not None and is_loopback(place[0]))
    return options.token_file is None and private


def _announce(options: RelayOptions, address: str) -> None:
    if options.json:
        told = {"listening": address, "verifier": options.verifier, "pid": os.getpid()}
        print(json.dumps(told), flush=True)
    else:
        print(f"Relaying {address} to {options.verifier}; stop with Ctrl-C.", flush=True)
