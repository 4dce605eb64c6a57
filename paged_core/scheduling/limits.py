"""What every scheduler here asks of the limits it is given. Light: providers import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.api.scheduler import SchedulerNeed


def reasons_against(need: SchedulerNeed) -> list[str]:
    """Why no scheduler could serve `need`, ready for `Fit.judge`: a token and a sequence must be able to run."""
    return [
        f"{name} must be at least 1, got {getattr(need, name)}"
        for name in ("token_budget", "max_num_seqs")
        if getattr(need, name) < 1
    ]
