"""/v1/models and what the server says of itself."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ModelCard(BaseModel):
    """One model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "paged-core"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Version(BaseModel):
    """The program's version."""

    version: str


class Health(BaseModel):
    """Whether it works, and why not."""

    status: str
    reason: str | None = None


class ErrorDetail(BaseModel):
    """What is wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer that is an error."""

    error: ErrorDetail
