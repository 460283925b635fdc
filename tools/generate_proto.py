"""Generate the Python code of the protocols from their `.proto` files. The generated files are committed.

Usage: python tools/generate_proto.py [--check]

With `--check`, nothing is written, and the exit code is 1 if the committed files are out of date.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
FEDERATION = Path("gainroute/federation")
# By file: what is generated, and which of its names are exported (none for stubs).
PROTOS: dict[Path, dict[str, tuple[str, ...]]] = {
    FEDERATION / "transport/proto/party.proto": {
        "party_pb2.py": (
            "DESCRIPTOR", "Answer", "DescribeReply", "DescribeRequest", "Failure", "MaskPlan", "Masking", "Model",
            "Request", "Response", "Round", "Task", "TaskReply", "TaskResult", "Tensor", "ROUND_EMBEDDINGS",
            "ROUND_POSTERIORS", "ROUND_UNSPECIFIED",
        ),
        "party_pb2.pyi": (),
        "party_pb2_grpc.py": (
            "Party", "PartyServicer", "PartyStub", "add_PartyServicer_to_server", "Training", "TrainingServicer",
            "TrainingStub", "add_TrainingServicer_to_server",
        ),
    },
    FEDERATION / "coordinator/grpc_door/proto/open_inference.proto": {
        "open_inference_pb2.py": (
            "DESCRIPTOR", "ConfigReply", "Contents", "Empty", "IndexReply", "IndexRequest", "InferReply",
            "InferRequest", "LiveReply", "ModelMetadata", "ModelRequest", "Parameter", "ReadyReply",
            "RepositoryRequest", "ServerMetadata", "StatisticsReply",
        ),
        "open_inference_pb2.pyi": (),
    },
}  # fmt: skip


def generate(folder: Path) -> dict[Path, bytes]:
    """Return the generated files by path, with `__all__` added, as in every module of the package."""
    from grpc_tools import protoc

    made = {}
    for proto, files in PROTOS.items():
        out = ["--python_out", "--pyi_out", "--grpc_python_out"]
        command = ["protoc", f"-I{SOURCE}", *(f"{option}={folder}" for option in out), str(SOURCE / proto)]
        if protoc.main(command) != 0:
            raise SystemExit("protoc failed; see its messages above")
        for name, exported in files.items():
            body = (folder / proto.parent / name).read_text(encoding="utf-8")
            if exported:
                body += f"\n__all__ = {list(exported)!r}\n"
            made[proto.parent / name] = body.encode()
    return made


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        made = generate(Path(folder))
    stale = [p for p, body in made.items() if not (SOURCE / p).is_file() or (SOURCE / p).read_bytes() != body]
    if not check:
        for path in stale:
            (SOURCE / path).write_bytes(made[path])
    sys.stdout.write(f"{'stale' if check else 'written'}: {', '.join(path.name for path in stale) or 'nothing'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
