"""Record: what became of one request, in times of the client's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.workload.traces import Arrival


@dataclass(slots=True)
class Reply:
    """What a server answered. Times are the client's clock's, in seconds.

    text_s      when each piece of text arrived; a piece may hold several tokens
    num_prompt  prompt tokens by the server's usage; None when it told none
    num_output  output tokens by the server's usage; None when it told none
    error       the kind of failure, empty when there was none; `detail` is what was said about it
    """

    text_s: list[float] = field(default_factory=list)
    num_prompt: int | None = None
    num_output: int | None = None
    error: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A request and its reply. Times are seconds after the run began.

    due_s   when it should have been sent: `asked.at_s`
    woke_s  when the client got to it; what is after `due_s` is the client's fault
    sent_s  when it was sent: later than `woke_s` only where a limit on concurrency held it
    """

    asked: Arrival
    woke_s: float
    sent_s: float
    ended_s: float
    text_s: tuple[float, ...]
    num_prompt: int | None
    usage_output: int | None
    error: str
    detail: str

    @property
    def due_s(self) -> float:
        """When it should have been sent."""
        return self.asked.at_s

    @property
    def num_output(self) -> int:
        """Output tokens: the server's count, or, where it told none, the pieces of text."""
        return len(self.text_s) if self.usage_output is None else self.usage_output

    @property
    def ok(self) -> bool:
        """Whether it was answered to the end."""
        return not self.error
