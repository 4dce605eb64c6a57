"""Every error this project raises on purpose, as one tree.

    PagedError
    |- ConfigError              the user asked for something that cannot be (exit code 2)
    |  |- UnknownPluginError    no plugin of that name; carries a did-you-mean
    |  `- PluginUnfitError      the chosen plugin does not fit this machine or model; carries all reasons
    |- PluginError              a plugin is at fault
    |  |- PluginLoadError       it could not be imported or did not register
    |  |- PluginConflictError   two distributions claim one name
    |  |- PluginApiError        it speaks another version of the contract
    |  `- PluginContractError   it broke a law of the contract while running
    |- ModelError               the model's files are at fault (exit code 2)
    |  |- ModelNotFoundError    there is no such model here
    |  |- ModelFormatError      damaged, truncated or incomplete files
    |  `- ModelUnsupportedError sound files of a kind we do not run
    |- RequestError             one request is invalid; also a ValueError; harms nobody else (HTTP 400)
    `- EngineDeadError          the engine stopped; the cause is chained

A message says what happened (with values), why, and what to do.
"""

from __future__ import annotations


class PagedError(Exception):
    """Root of the tree; `exit_code` is what the command line returns for it."""

    exit_code = 1


class ConfigError(PagedError):
    """The user's settings cannot be satisfied."""

    exit_code = 2


class UnknownPluginError(ConfigError):
    """No plugin bears the name that was asked for."""


class PluginUnfitError(ConfigError):
    """The chosen plugin does not fit; the message lists every reason, what would fit, and the cure."""


class PluginError(PagedError):
    """A plugin is at fault."""


class PluginLoadError(PluginError):
    """A plugin that was chosen could not be loaded; the cause is chained."""

    exit_code = 2


class PluginConflictError(PluginError):
    """Two distributions register the same name."""

    exit_code = 2


class PluginApiError(PluginError):
    """A plugin was written for another version of its kind's contract."""

    exit_code = 2


class PluginContractError(PluginError):
    """A plugin broke a law of the contract at run time; the message names the law."""


class ModelError(PagedError):
    """The model's files are at fault."""

    exit_code = 2


class ModelNotFoundError(ModelError):
    """Nothing by that name is here or can be obtained."""


class ModelFormatError(ModelError):
    """Damaged, truncated or incomplete files; the message names the file or tensor."""


class ModelUnsupportedError(ModelError):
    """The files are sound but describe something this project does not run."""


class RequestError(PagedError, ValueError):
    """One request is invalid. `field` names the offending parameter where there is one."""

    exit_code = 2

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class EngineDeadError(PagedError):
    """The engine stopped and answers no more; the cause is chained."""
