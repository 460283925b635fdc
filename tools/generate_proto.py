"""Generate the Python code of the protocol from `party.proto`. The generated files are committed.

Usage: python tools/generate_proto.py [--check]

With `--check`, nothing is written, and the exit code is 1 if the committed files are out of date.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROTO = Path("gainroute/federation/transport/proto/party.proto")
GENERATED = ("party_pb2.py", "party_pb2.pyi", "party_pb2_grpc.py")
EXPORTED = {
    "party_pb2.py": (
        "DESCRIPTOR", "Answer", "DescribeReply", "DescribeRequest", "Failure", "MaskPlan", "Masking", "Model",
        "Request", "Response", "Round", "Task", "TaskReply", "TaskResult", "Tensor", "ROUND_EMBEDDINGS",
        "ROUND_POSTERIORS", "ROUND_UNSPECIFIED",
    ),
    "party_pb2_grpc.py": (
        "Party", "PartyServicer", "PartyStub", "add_PartyServicer_to_server", "Training", "TrainingServicer",
        "TrainingStub", "add_TrainingServicer_to_server",
    ),
}  # fmt: skip


def generate(folder: Path) -> dict[str, bytes]:
    """Return the generated files by name, with `__all__` added, as in every module of the package."""
    from grpc_tools import protoc

    out = ["--python_out", "--pyi_out", "--grpc_python_out"]
    command = ["protoc", f"-I{SOURCE}", *(f"{option}={folder}" for option in out), str(SOURCE / PROTO)]
    if protoc.main(command) != 0:
        raise SystemExit("protoc failed; see its messages above")
    made = {}
    for name in GENERATED:
        body = (folder / PROTO.parent / name).read_text(encoding="utf-8")
        if name in EXPORTED:
            body += f"\n__all__ = {list(EXPORTED[name])!r}\n"
        made[name] = body.encode()
    return made


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    target = SOURCE / PROTO.parent
    with tempfile.TemporaryDirectory() as folder:
        made = generate(Path(folder))
    stale = [n for n, body in made.items() if not (target / n).is_file() or (target / n).read_bytes() != body]
    if not check:
        for name in stale:
            (target / name).write_bytes(made[name])
    sys.stdout.write(f"{'stale' if check else 'written'}: {', '.join(stale) or 'nothing'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
