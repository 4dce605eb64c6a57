"""The command line."""

from paged_core.cli.main import main

__all__ = ["main"]
