"""Runs the link from the command line: settings in, one line out, then until a signal ends it."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

from simulator.proxy.connection import Address, LinkSettings
from simulator.proxy.fault_link import Link
from simulator.proxy.toxics import Bandwidth, Latency, LinkError, SettingsError, Toxic, both_ways, rtt

logger = logging.getLogger(__name__)

_EPILOG = """\
The first line on standard output says where the link listens; connect the client there, not to the server.
On Ctrl-C or SIGTERM it prints how many bytes went each way and ends.

examples:
  # a server on port 50051, seen over a 60 ms round trip and 2 MB/s
  {prog} --upstream 127.0.0.1:50051 --rtt 60 --rate 2000
Times are in ms, rates in KB/s of 1000 bytes.
"""


def make_parser(prog: str = "python -m simulator.proxy") -> argparse.ArgumentParser:
    """Return the parser, whose help explains the command to a newcomer."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="A TCP proxy that makes loopback behave like a distant, slow or failing link.",
        epilog=_EPILOG.replace("{prog}", prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--upstream", required=True, metavar="HOST:PORT", help="address of the server behind the link")
    option(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="address for clients (default: %(default)s)",
    )
    delay = parser.add_mutually_exclusive_group()
    delay.add_argument(
        "--latency", type=float, metavar="MS", help="delay of each direction; a round trip doubles it"
    )
    delay.add_argument(
        "--rtt", type=float, metavar="MS", help="delay of a round trip, half on each direction"
    )
    option(
        "--jitter", type=float, default=0.0, metavar="MS", help="uniform jitter +- MS of --latency or --rtt"
    )
    option("--rate", type=float, metavar="KB/s", help="bandwidth of each direction (default: unlimited)")
    option("--seed", type=int, default=0, metavar="N", help="seed of jitter (default: %(default)s)")
    option("--verbose", action="store_true", help="log each connection on standard error")
    return parser


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m simulator.proxy") -> int:
    """Run the link until SIGINT or SIGTERM; return the exit status, or exit with 2 on a wrong argument."""
    parser = make_parser(prog)
    options = parser.parse_args(argv)
    try:
        link = make_link(options)
    except LinkError as error:
        parser.error(str(error))
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO, format="%(name)s %(message)s"
    )
    try:
        asyncio.run(_serve(link))
    except SettingsError as error:  # the address is taken
        parser.error(str(error))
    except KeyboardInterrupt:  # only where signal handlers cannot be set
        pass
    sys.stdout.write(f"{link.counters}\n")
    return 0


def make_link(options: argparse.Namespace) -> Link:
    """Return the link that parsed options describe. Raises `SettingsError`."""
    settings = LinkSettings(Address.parse(options.upstream), Address.parse(options.listen), options.seed)
    return Link(settings, [*_delay(options), *_rate(options)])


def _delay(options: argparse.Namespace) -> Sequence[Toxic]:
    if options.rtt is not None:
        return rtt(options.rtt, jitter=options.jitter)
    if options.latency is None and not options.jitter:
        return ()
    return both_ways(Latency(options.latency or 0.0, jitter=options.jitter))


def _rate(options: argparse.Namespace) -> Sequence[Toxic]:
    return () if options.rate is None else both_ways(Bandwidth(options.rate))


async def _serve(link: Link) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows; Ctrl-C is a KeyboardInterrupt there
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with link:
        sys.stdout.write(f"listening on {link.address}\n")
        sys.stdout.flush()
        await stop.wait()
