"""Requests made up from the server's own description: whatever it is sent, it answers as described."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
NUM_ROUTES = 9


def no_stray_refusal(response) -> None:
    """Errors are error objects, and 422 is none of ours."""
    assert response.status_code != 422
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_route_answers_what_its_description_says(target, mode):
    headers = {"Authorization": f"Bearer {target.key}"}
    schema = schemathesis.openapi.from_url(f"{target.url}/openapi.json", headers=headers)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= NUM_ROUTES

    def check(operation):
        strategy = operation.as_strategy(generation_mode=mode)

        @FEW
        @given(case=strategy)
        def one(case):
            response = case.call(headers=headers, timeout=60)
            case.validate_response(response, checks=CHECKS, headers=headers)
            no_stray_refusal(response)

        one()

    for operation in operations:
        if mode is GenerationMode.POSITIVE or operation.body:  # else nothing can be wrong
            check(operation)
