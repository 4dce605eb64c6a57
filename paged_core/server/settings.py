"""ServeSettings: what the operator of a server wants: where it listens, who may ask, and how much."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from paged_core.settings import PREFIX, Bytes, Layered, Names


class ServeSettings(Layered):
    """Build it with `ServeSettings.load`: flags over PAGED_SERVE_* over [serve] of paged.toml over defaults.

    Bounds are what one request may ask for; 0 switches a time off, as its description says.
    """

    table: ClassVar[str] = "serve"
    model_config = SettingsConfigDict(env_prefix=PREFIX + "SERVE_")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 is every interface: use --api-key.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_key: Names = Field(
        (), description="Keys that callers must send (Authorization: Bearer KEY), separated by commas. None: all may."
    )
    allow_origin: Names = Field(
        (), description="Origins of web pages elsewhere that may call this server from a browser; * is every page."
    )
    isolate_keys: bool = Field(
        False, description="Each API key gets a prefix cache of its own, so that none can tell what another asked."
    )
    served_model_name: Names = Field((), description="Names callers may use for the model. [default: the model's name]")
    max_body: Bytes = Field(4 * 2**20, ge=1024, description="Largest request body; larger ones get 413.")
    max_bodies: Bytes = Field(
        2**28, ge=1024, description="Most bytes in the bodies of all requests being answered; more get 429."
    )
    max_queue: int = Field(
        1024, ge=0, description="Requests that may wait beyond those that run; more get 429 with Retry-After."
    )
    max_n: int = Field(128, ge=1, description="Most answers (n, best_of) one prompt may ask for.")
    max_prompts: int = Field(512, ge=1, description="Most prompts in one request.")
    max_logprob_entries: int = Field(
        2**22, ge=1, description="Most log-probabilities one request may ask for in all its tokens and answers."
    )
    max_stop: int = Field(16, ge=1, description="Most stop strings.")
    max_messages: int = Field(4096, ge=1, description="Most messages in one conversation.")
    max_tools: int = Field(128, ge=0, description="Most tools in one request.")
    tool_format: Literal["auto", "hermes", "llama3_json"] = Field(
        "auto", description="How the model writes tool calls; auto asks its chat template."
    )
    max_template_kwargs: int = Field(32, ge=0, description="Most chat template variables in one request.")
    max_schema: Bytes = Field(2**18, ge=64, description="Largest JSON schema, grammar or regular expression.")
    plain_content: bool = Field(
        False, description="Control tokens spelt in the contents of a chat are text: no content can end its turn."
    )
    timeout: float = Field(
        0.0, ge=0, description="Seconds a request may take when it names no timeout, and at most; 0 is no limit."
    )
    body_timeout: float = Field(60.0, gt=0, description="Seconds in which a request's body must arrive.")
    drain: float = Field(30.0, ge=0, description="Seconds that SIGTERM leaves to requests that run.")
    stall: float = Field(60.0, gt=0, description="Seconds without a step until /health says that the engine hangs.")
    replicas: int = Field(
        0,
        ge=0,
        description="Engines behind this server, as replicas of Ray Serve; 0 is one, in this process, without Ray.",
    )
    max_replicas: int | None = Field(
        None, ge=1, description="Most replicas that load may make of --replicas. [default: no more than --replicas]"
    )
    ray_address: str | None = Field(
        None,
        description="Ray cluster to join: auto, or HOST:PORT. [default: one on this machine, for this command alone]",
    )
    replica_cpus: float | None = Field(
        None,
        gt=0,
        description="Processor cores of each replica. [default: its share of this machine's; in a cluster 1]",
    )
    replica_gpus: float | None = Field(
        None, ge=0, description="GPUs of each replica. [default: 1 where this machine has one]"
    )
    docs: bool = Field(False, description="Serve the interactive pages of the API at /docs.")
