#!/usr/bin/env bash
# Writes the digests of all base images into bases.env: deploy/docker/pin.sh [--mirror HOST=URL]
# Needs Python 3.11 (PYTHON names it) and a network that reaches the registries, but no container engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec "${PYTHON:-python3}" -m tools.pin_bases "$@"
