"""A cost model by name: which one it is, and what is said of one that is not there."""

from __future__ import annotations

import pytest

from paged_core.costs.calibrated import Calibrated
from paged_core.costs.choice import Server, find_cost
from paged_core.costs.devices import DEVICES, find_device
from paged_core.costs.models import MODELS, find_model, plain_name
from paged_core.costs.roofline import Roofline
from paged_core.costs.work import StepWork
from paged_core.errors import ConfigError

PAPER = Server("facebook/opt-13b", MODELS["opt-13b"], DEVICES["a100-40gb"])
OTHER = Server("llama-3-8b", MODELS["llama-3-8b"], DEVICES["h200"])


class OwnCost:
    """As a user would write one: given the server."""

    def __init__(self, server: Server) -> None:
        self.layers = server.spec.num_layers

    def step_s(self, work: StepWork) -> float:
        return self.layers * 1.0

    def describe(self) -> str:
        return "own"


OWN = OwnCost(OTHER)
NOTHING = object()


def test_auto_takes_published_coefficients_and_the_roofline_for_the_rest() -> None:
    found = find_cost("auto", PAPER)
    assert isinstance(found, Calibrated)
    assert isinstance(found.mixed, Roofline)
    assert isinstance(find_cost("auto", OTHER), Roofline)


def test_calibrated_is_the_published_fit_alone_or_nothing() -> None:
    found = find_cost("calibrated", PAPER)
    assert isinstance(found, Calibrated)
    assert found.mixed is None
    with pytest.raises(ConfigError, match=r"llama-3-8b on 1 x h200.*roofline"):
        find_cost("calibrated", OTHER)


def test_roofline_is_the_roofline_even_where_more_is_known() -> None:
    assert isinstance(find_cost("roofline", PAPER), Roofline)


def test_an_own_cost_model_is_imported_made_or_not() -> None:
    for name in ("OwnCost", "OWN"):
        found = find_cost(f"{__name__}:{name}", OTHER)
        assert found.step_s(StepWork()) == OTHER.spec.num_layers


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.at_all:Cost", "nowhere"),
        (f"{__name__}:NotThere", "NotThere"),
        (f"{__name__}:NOTHING", "cannot be had"),
        ("coasts", "module:attribute"),
    ],
)
def test_what_is_no_cost_model_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find_cost(name, OTHER)


def test_devices_and_models_go_by_their_usual_names() -> None:
    assert find_device("A100-40G").name == "a100-40gb"
    assert plain_name("facebook/OPT-13b") == plain_name("random:opt-13b") == "opt-13b"
    with pytest.raises(ConfigError, match="did you mean h200"):
        find_device("h2000")
    with pytest.raises(ConfigError, match="did you mean opt-13b"):
        find_model("opt-13")


def test_slots_of_the_papers_servers_are_the_papers() -> None:
    assert PAPER.pool_tokens() == 15_728
    assert PAPER.token_bytes() == 819_200
