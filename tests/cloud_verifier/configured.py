"""A verifier's configuration as the command line gives it."""

from cloud_verifier.settings import VerifierConfig
from forerun.cli import build_parser
from forerun.commands.verify import config_of


def configured(*words: str, model: str = "none") -> VerifierConfig:
    """Of `forerun verify --model MODEL` and these words."""
    return config_of(build_parser("verify").parse_args(["verify", "--model", model, *words]))
