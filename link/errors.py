"""The errors of the link, by whose fault they are.

    LinkError
    ├── SettingsError (ValueError)      the caller's: a setting, a toxic or an address is not valid
    ├── ScriptError (ValueError)        the script author's: an entry of the JSON script is not valid
    ├── UnknownToxicError (LookupError) the caller's: no toxic has that name
    └── LinkStateError (RuntimeError)   the caller's: the link is not running, or it already is

What the two peers do (refuse, reset, vanish) is no error here: it is what a link is there to show.
"""


class LinkError(Exception):
    """Base of everything that this package raises on purpose."""


class SettingsError(LinkError, ValueError):
    """A value is out of its range; the message names it, its unit and what is allowed."""


class ScriptError(LinkError, ValueError):
    """A script cannot be read; the message names the entry, counted from 0."""


class UnknownToxicError(LinkError, LookupError):
    """No toxic has that name; the message lists the names there are."""


class LinkStateError(LinkError, RuntimeError):
    """A call came before the link was started, or after it was closed."""
