"""The Open Inference Protocol, and Triton's extensions of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gainroute.federation.coordinator.api.bodies.base import Body

__all__ = [
    "IndexRequest", "InferRequest", "InferResponse", "Live", "ModelConfig", "ModelMetadata", "ModelReady",
    "ModelStatistics", "Ready", "RepositoryEntry", "ServerMetadata",
]  # fmt: skip


class InputParameters(BaseModel):
    """Parameters of the input; unknown ones are ignored."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"propertyNames": {"not": {"const": "shared_memory_region"}}}
    )
    binary_data_size: None = None


class SampleIds(Body):
    """The input: sample ids."""

    name: Literal["id"]
    datatype: Literal["BYTES"]
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, max_length=1, description="[N]")]
    data: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=1024)]],
        Field(min_length=1, description="N texts of at most 1024 bytes each"),
    ]
    parameters: InputParameters = InputParameters()


class RequestParameters(BaseModel):
    """Parameters of the request; unknown ones are ignored."""

    model_config = ConfigDict(extra="allow")
    binary_data_output: bool = False


class OutputParameters(BaseModel):
    """Parameters of an output; unknown ones are ignored."""

    model_config = ConfigDict(extra="allow")
    binary_data: bool = False


class RequestedOutput(Body):
    """An output, by name; each at most once."""

    name: Literal["label", "probabilities", "escalated", "score", "route", "decision_id", "class"]
    parameters: OutputParameters = OutputParameters()


class InferRequest(Body):
    """Samples to answer; without `outputs`, all are sent."""

    id: str | None = None
    parameters: RequestParameters = RequestParameters()
    inputs: Annotated[list[SampleIds], Field(min_length=1, max_length=1)]
    outputs: list[RequestedOutput] | None = None


class TextOutput(Body):
    """One text per sample."""

    name: Literal["route", "decision_id", "class"]
    datatype: Literal["BYTES"]
    shape: list[int]
    data: list[str]


class LabelOutput(Body):
    """The column of the class, −1 for a sample that no party has."""

    name: Literal["label"]
    datatype: Literal["INT64"]
    shape: list[int]
    data: list[int]


class FlagOutput(Body):
    """Whether Round 2 was asked."""

    name: Literal["escalated"]
    datatype: Literal["BOOL"]
    shape: list[int]
    data: list[bool]


class NumberOutput(Body):
    """Numbers, row by row; null where there are none."""

    name: Literal["probabilities", "score"]
    datatype: Literal["FP32"]
    shape: list[int]
    data: list[float | None]


class InferResponse(Body):
    """The answers, in the order of the ids."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[TextOutput | LabelOutput | FlagOutput | NumberOutput]


class ServerMetadata(Body):
    """The server."""

    name: Literal["gainroute"]
    version: str
    extensions: list[str]


class Live(Body):
    """The process runs."""

    live: Literal[True]


class Ready(Body):
    """Whether requests would be answered."""

    ready: bool


class ModelReady(Body):
    """Whether the model would answer; if not, why."""

    name: str
    ready: bool
    error: str | None = None
    code: str | None = None


class TensorMetadata(Body):
    """A tensor; −1 in its shape is the number of samples."""

    name: str
    datatype: Literal["BYTES", "INT64", "FP32", "BOOL"]
    shape: list[int]


class ModelParameters(Body):
    """Names of the classes, in column order."""

    classes: list[str]


class ModelMetadata(Body):
    """The model: versions, inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: ModelParameters


# ---- Triton's extensions ----------------------------------------------------------------------------


class ConfiguredTensor(Body):
    """A tensor, as Triton writes it."""

    name: str
    data_type: str
    dims: list[int]


class ModelConfig(Body):
    """The model's configuration, as Triton writes it."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, dict[str, int]]
    max_batch_size: int
    input: list[ConfiguredTensor]
    output: list[ConfiguredTensor]
    parameters: dict[str, dict[str, str]]


class Spent(Body):
    """How often, and nanoseconds in all."""

    count: int
    ns: int


class BatchStatistics(Body):
    """Batches of one size."""

    batch_size: int
    compute_input: Spent
    compute_infer: Spent
    compute_output: Spent


class OneModelStatistics(Body):
    """Counts since the start, in samples and nanoseconds."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: dict[str, Spent]
    response_stats: dict[str, Any]
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any]


class ModelStatistics(Body):
    """Statistics of the models."""

    model_stats: list[OneModelStatistics]


class RepositoryEntry(Body):
    """A model that is served."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class IndexRequest(Body):
    """Which models are listed."""

    ready: bool = False
