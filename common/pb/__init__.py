"""Generated from the files of proto/forerun/v1 by lab/tools/proto.py; edit those, not these."""
