"""Generated from proto/forerun/v1/verifier.proto by tools/proto.py; edit that file, not these."""
