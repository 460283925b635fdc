"""The protocols: the generated code matches the .proto, v1 stays compatible, and clients' fields are theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as oip
from gainroute.federation.transport.proto import party_pb2 as pb

ROOT = Path(__file__).parents[3]

# Changes within v1 are additive: lines may be added here, none may change or go.
FIXED = {
    "DescribeRequest": {"request_id": 1},
    "DescribeReply": {
        "name": 1, "classes": 2, "models": 3, "codecs": 4, "revision": 5, "max_samples": 6, "max_message_bytes": 7,
        "certificate_not_after": 8, "masking": 9,
    },
    "Masking": {"public_key": 1, "peers": 2, "min_roster": 3, "max_weight_share": 4},
    "MaskPlan": {"members": 1, "eps": 2},
    "Model": {"hash": 1, "dimension": 2},
    "Tensor": {"shape": 1, "encoding": 2, "data": 3},
    "Request": {
        "correlation": 1, "request_id": 2, "round": 3, "model": 4, "codec": 5, "ids": 6, "cancel": 7, "mask_plan": 8,
        "mask_nonce": 9,
    },
    "Response": {"correlation": 1, "answer": 2, "failure": 3},
    "Answer": {"model": 1, "missing": 2, "values": 3, "withheld": 4},
    "Failure": {"code": 1, "message": 2, "retry_after_seconds": 3},
}  # fmt: skip


def test_the_generated_code_is_that_of_the_proto():
    command = [sys.executable, ROOT / "tools/generate_proto.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_v1_has_fixed_stays():
    assert pb.DESCRIPTOR.package == "gainroute.party.v1"
    for message, fields in FIXED.items():
        found = pb.DESCRIPTOR.message_types_by_name[message].fields_by_name
        assert {name: found[name].number for name in fields} == fields
    assert dict(pb.Round.items()) == {"ROUND_UNSPECIFIED": 0, "ROUND_POSTERIORS": 1, "ROUND_EMBEDDINGS": 2}
    methods = pb.DESCRIPTOR.services_by_name["Party"].methods_by_name
    assert {name: (m.client_streaming, m.server_streaming) for name, m in methods.items()} == {
        "Describe": (False, False),
        "Stream": (True, True),
    }


def test_an_unknown_field_is_skipped():
    later = pb.Model(hash="h", dimension=2).SerializeToString() + b"\x9a\x06\x03new"  # field 99, a later revision's
    assert pb.Model.FromString(later).dimension == 2


# Messages of the Open Inference Protocol, and what a stock client calls them.
CLIENTS = {
    "LiveReply": "ServerLiveResponse", "ReadyReply": "ServerReadyResponse", "ServerMetadata": "ServerMetadataResponse",
    "ModelRequest": "ModelReadyRequest ModelMetadataRequest ModelConfigRequest ModelStatisticsRequest",
    "ModelMetadata": "ModelMetadataResponse", "InferRequest": "ModelInferRequest", "InferReply": "ModelInferResponse",
    "ConfigReply": "ModelConfigResponse", "StatisticsReply": "ModelStatisticsResponse",
    "IndexRequest": "RepositoryIndexRequest", "IndexReply": "RepositoryIndexResponse",
    "RepositoryRequest": "RepositoryModelLoadRequest RepositoryModelUnloadRequest",
}  # fmt: skip


def compare(own, client, path):
    """Every field of ours is, by number, type and number of values, one of the client's."""
    for field in own.fields:
        theirs = client.fields_by_name[field.name]
        kinds = [(f.number, f.type, f.is_repeated) for f in (field, theirs)]
        assert kinds[0] == kinds[1], f"{path}.{field.name}"
        if field.message_type is not None:
            compare(field.message_type, theirs.message_type, f"{path}.{field.name}")
        if field.enum_type is not None:
            known = {value.name: value.number for value in theirs.enum_type.values}
            assert {value.name: known[value.name] for value in field.enum_type.values} == {
                value.name: value.number for value in field.enum_type.values
            }


@pytest.mark.filterwarnings("default")  # what the client's own libraries warn of is not ours
def test_fields_of_the_open_inference_protocol_are_those_of_a_stock_client():
    stock = pytest.importorskip("tritonclient.grpc").service_pb2.DESCRIPTOR.message_types_by_name
    for name, clients in CLIENTS.items():
        for client in clients.split():
            compare(oip.DESCRIPTOR.message_types_by_name[name], stock[client], name)
