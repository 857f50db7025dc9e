"""What the edge daemon can be told: one schema, from which its files, variables, flags and pages follow.

schema     the sections as frozen dataclasses, checked when they are made
setting    one setting: default, meaning, unit, bounds
values     a value's way from a file, a variable or a flag into its type, and back into TOML
merge      layers of values on each other, with the place that each came from
toml_file  a TOML file as a layer, and on which line a key stands
flags      the settings as options of a command
pages      the commented file and the reference page
"""

from __future__ import annotations

from edge_client.config.merge import Loaded, Origin, Overlay, load_config
from edge_client.config.schema import SECTIONS, EdgeConfig
from edge_client.config.sections import (
    ApiSection,
    DraftSection,
    FleetSection,
    LogSection,
    ServiceSection,
    VerifierSection,
)

__all__ = [
    "SECTIONS",
    "ApiSection",
    "DraftSection",
    "EdgeConfig",
    "FleetSection",
    "Loaded",
    "LogSection",
    "Origin",
    "Overlay",
    "ServiceSection",
    "VerifierSection",
    "load_config",
]
