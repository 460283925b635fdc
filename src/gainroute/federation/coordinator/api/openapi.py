"""The OpenAPI schema: bodies of requests, errors by status, and who may call."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gainroute.federation.coordinator.api.bodies.base import Error
from gainroute.federation.coordinator.api.bodies.inference import IndexRequest, InferRequest
from gainroute.federation.coordinator.api.bodies.operation import (
    Budget,
    Feedback,
    Reset,
    RouterChange,
    ShadowChange,
    Threshold,
)
from gainroute.federation.coordinator.auth import ADMIN, PUBLIC
from gainroute.federation.coordinator.errors import CoordinatorError
from gainroute.federation.coordinator.settings import CoordinatorSettings

__all__ = ["complete_schema", "error_responses", "json_body"]

MODELS = (Budget, Error, Feedback, IndexRequest, InferRequest, Reset, RouterChange, ShadowChange, Threshold)
REFERENCE = "#/components/schemas/{model}"
VERSION = "^[0-9a-f]{12}$"
TOKEN, PASSWORD = "token", "password"


def json_body(kind: type[BaseModel], example: Any, *, required: bool = True) -> dict[str, Any]:
    """The body of a request, for `openapi_extra`; `kind` is one of `MODELS`."""
    content = _json_content(kind)
    content["application/json"]["example"] = example
    return {"requestBody": {"required": required, "content": content}}


def error_responses() -> dict[int | str, dict[str, Any]]:
    """The errors by status, for routers; by name, since the framework would compile a model per route and status."""
    kinds, texts = CoordinatorError.__subclasses__(), dict[int, list[str]]()
    for kind in kinds:
        kinds += kind.__subclasses__()
        texts.setdefault(kind.status, []).append(f"`{kind.code}`: {kind.__doc__}")
    texts[405] = ["`method_not_allowed`: The page exists, and is asked for by another method."]
    return {
        status: {"description": " ".join(found), "content": _json_content(Error)} for status, found in texts.items()
    }


def complete_schema(schema: dict[str, Any], settings: CoordinatorSettings) -> dict[str, Any]:
    """Add the bodies of requests and errors, the tokens that calls need, and which models there are."""
    _, found = models_json_schema([(kind, "validation") for kind in MODELS], ref_template=REFERENCE)
    components = schema["components"]
    components["schemas"] |= found["$defs"]
    components["securitySchemes"] = {
        TOKEN: {"type": "http", "scheme": "bearer"},
        PASSWORD: {"type": "http", "scheme": "basic", "description": "The token is the password, with any user name."},
    }
    either: list[dict[str, list[str]]] = [{TOKEN: []}, {PASSWORD: []}]
    known = {"name": {"const": settings.server.model}, "version": {"pattern": VERSION}}
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            if path in PUBLIC:
                operation["security"] = []
            elif path.startswith(f"{ADMIN}/"):
                operation["security"] = [{TOKEN: []}]
            else:
                operation["security"] = [{}, *either] if settings.open_access else either
            _name_path(operation, path, known)
    return schema


def _json_content(kind: type[BaseModel]) -> dict[str, dict[str, Any]]:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=kind.__name__)}}}


def _name_path(operation: dict[str, Any], path: str, known: dict[str, dict[str, Any]]) -> None:
    """Describe the parameters in a path, also those that several paths share a function for."""
    parameters = operation.setdefault("parameters", [])
    for name in re.findall(r"{(\w+)}", path):
        found = next((given for given in parameters if given["name"] == name), None)
        if found is None:
            found = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            parameters.append(found)
        found["schema"] |= known.get(name, {})
