"""Schedulers whose providers each break the contract in one way; `sched_sound` breaks nothing.

Loaded by --paged-plugin. SPOTTED_BY names, for each of them, the test of the suite that must fail.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginSettings, Provider
from paged_core.api.scheduler import Decision, Scheduler, SchedulerNeed, View

SPOTTED_BY = {
    "sched_two_lines": "test_summary_is_one_line",
    "sched_shouting": "test_capabilities_are_a_frozen_set_of_lower_case_words",
    "sched_nowhere": "test_devices_are_a_frozen_set_of_those_that_needs_name",
    "sched_elsewhere": "test_devices_are_a_frozen_set_of_those_that_needs_name",
    "sched_demanding": "test_settings_have_a_default_for_everything",
    "sched_wordless": "test_settings_schema_is_json_and_describes_every_field",
    "sched_thawed": "test_settings_are_frozen_and_refuse_unknown_keys",
    "sched_lenient": "test_settings_are_frozen_and_refuse_unknown_keys",
    "sched_raising": "test_probe_answers_every_need_with_a_fit_and_never_raises",
    "sched_boolean": "test_probe_answers_every_need_with_a_fit_and_never_raises",
    "sched_silent": "test_probe_gives_a_reason_for_every_refusal",
    "sched_eager": "test_probe_refuses_an_unknown_capability_by_name",
    "sched_curt": "test_probe_names_every_missing_capability",
    "sched_counting": "test_probe_has_no_side_effects",
    "sched_printing": "test_probe_has_no_side_effects",
    "sched_changeable": "test_probe_has_no_side_effects",
    "sched_alien": "test_create_gives_the_backend_of_its_kind",
}


class Idle(Scheduler):
    def decide(self, view: View) -> Decision:
        return Decision()


class Sound(Provider[SchedulerNeed, Scheduler]):
    name = "sched_sound"
    kind = "sched"
    api = 1
    summary = "breaks nothing that a contract test looks at"

    def probe(self, need: SchedulerNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: SchedulerNeed, settings: Any, plugins: Any) -> Scheduler:
        return Idle()


class TwoLines(Sound):
    name = "sched_two_lines"
    summary = "one\ntwo"


class Shouting(Sound):
    name = "sched_shouting"
    capabilities = frozenset({"FCFS"})


class Nowhere(Sound):
    name = "sched_nowhere"
    devices = frozenset()


class Elsewhere(Sound):
    name = "sched_elsewhere"
    devices = frozenset({"cuda:0"})


class Demanding(Sound):
    name = "sched_demanding"

    class Settings(PluginSettings):
        speed: int = Field(description="how fast")


class Wordless(Sound):
    name = "sched_wordless"

    class Settings(PluginSettings):
        speed: int = 1


class Thawed(Sound):
    name = "sched_thawed"

    class Settings(PluginSettings):
        model_config = ConfigDict(frozen=False)
        speed: int = Field(1, description="how fast")


class Lenient(Sound):
    name = "sched_lenient"

    class Settings(PluginSettings):
        model_config = ConfigDict(extra="ignore")


class Raising(Sound):
    name = "sched_raising"

    def probe(self, need: SchedulerNeed) -> Fit:
        if need.block_size == 0:
            raise ZeroDivisionError("block_size")
        return super().probe(need)


class Boolean(Sound):
    name = "sched_boolean"

    def probe(self, need: SchedulerNeed) -> Any:
        return super().probe(need) if need.max_len > 0 else False


class Silent(Sound):
    name = "sched_silent"

    def probe(self, need: SchedulerNeed) -> Fit:
        return Fit(False) if need.token_budget < 1 else super().probe(need)


class Eager(Sound):
    name = "sched_eager"

    def probe(self, need: SchedulerNeed) -> Fit:
        return Fit(True)


class Curt(Sound):
    name = "sched_curt"

    def probe(self, need: SchedulerNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required)[:1])


class Counting(Sound):
    name = "sched_counting"

    def __init__(self) -> None:
        self.num_probes = 0

    def probe(self, need: SchedulerNeed) -> Fit:
        self.num_probes += 1
        return super().probe(need)


class Printing(Sound):
    name = "sched_printing"

    def probe(self, need: SchedulerNeed) -> Fit:
        print("probing")
        return super().probe(need)


class Changeable(Sound):
    name = "sched_changeable"
    calls: ClassVar[list[int]] = []

    def probe(self, need: SchedulerNeed) -> Fit:
        self.calls.append(1)
        return Fit.judge([*self.missing_capabilities(need.required), *["a bad day"] * (len(self.calls) % 2)])


class Alien(Sound):
    name = "sched_alien"

    def create(self, need: SchedulerNeed, settings: Any, plugins: Any) -> Any:
        return BaseModel()


@hookimpl
def paged_scheduler() -> list[Sound]:
    kinds = [Sound, TwoLines, Shouting, Demanding, Wordless, Thawed, Lenient, Raising, Boolean, Silent]
    kinds += [Eager, Curt, Counting, Printing, Changeable, Alien, Nowhere, Elsewhere]
    return [kind() for kind in kinds]
