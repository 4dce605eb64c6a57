"""What every allocator here refuses in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.request import GroupState
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Container

    from paged_core.api.request import Group, Sequence


def forked_tokens(parent: Sequence, child: Sequence) -> int:
    """Tokens that `child` has in common with its parent: as many as it says, all while it says none.

    PluginContractError when the parent has computed fewer.
    """
    covered = child.num_computed or parent.num_computed
    if covered > parent.num_computed:
        raise PluginContractError(
            f"branch {child.index} of {child.request.id} claims {covered} computed tokens, but its parent "
            f"has only {parent.num_computed}"
        )
    return covered


def check_victim(group: Group, victims: Container[Group], *, took: bool) -> None:
    """PluginContractError unless `group` runs, has taken nothing in this plan and is none of its `victims`."""
    if took:
        raise PluginContractError(f"law 11: {group.id} already took blocks this step and cannot be a victim")
    if group in victims or group.state is not GroupState.RUNNING:
        raise PluginContractError(f"law 7: {group.id} cannot leave: it is {group.state.value} or left already")
