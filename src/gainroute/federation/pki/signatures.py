"""Ed25519 signatures of artifacts: a router or another file (``<file>.sig``), or a folder of models (``run.sig``).

A signature file is text: the format, the signer's public key, one line per file with its SHA-256, size and name, sorted
by name, and the signature over all lines before. What is loaded is a private copy whose bytes were verified, so that it
does not matter if the file changes after the check.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gainroute._util.files import write_bytes
from gainroute._util.hashing import hash_contents
from gainroute.errors import DataError, SettingError, SignatureError
from gainroute.io.run_folder import PartyFolder, RunFolder, signature_file

__all__ = ["Trust", "TrustSettings", "create_key", "load_key", "sign", "sign_run", "signer_name", "verified"]

HEADER = "gainroute signature 1"
MAX_BYTES = 1 << 20  # of a signature file
PREFIX = "ed25519:"
SIGNER = re.compile(f"{PREFIX}[0-9a-f]{{64}}")
ENTRY = re.compile(r"([0-9a-f]{64}) ([0-9]{1,18}) ([^\x00-\x1f\x7f]{1,1000})")
UNSIGNED = {"record.npz", "results.json", "report.html", "coordinator.toml", "work"}  # in a run: not its models
VARIABLE = "GAINROUTE_SIGNING_PASSPHRASE"  # in the environment: encrypts the signing key


@dataclass(frozen=True, kw_only=True)
class TrustSettings:
    """Whose signatures are accepted; without this section artifacts need none.

    Attributes
    ----------
    signers
        Public keys (``ed25519:…``) or files that hold one, as `gainroute sign key` prints and writes them.
    """

    # Paths, so that relative ones start at the settings file; a key has no "/" and is the last part of one.
    signers: tuple[Path, ...]

    def __post_init__(self) -> None:
        if not self.signers:
            raise SettingError("trust: signers is empty, so nothing could be loaded: name keys, or remove [trust]")


class Trust:
    """The public keys of the signers that are accepted, by name (``ed25519:…``)."""

    def __init__(self, signers: Iterable[str | os.PathLike[str]]) -> None:
        names = [_public_name(Path(signer)) for signer in signers]
        self._keys = {name: Ed25519PublicKey.from_public_bytes(bytes.fromhex(name[len(PREFIX) :])) for name in names}

    def entries(self, path: Path) -> dict[str, tuple[str, int]]:
        """SHA-256 and size of the signed files by name; raises SignatureError unless a trusted signer signed them."""
        file = signature_file(path)
        try:
            with file.open("rb") as opened:
                body = opened.read(MAX_BYTES + 1)
        except FileNotFoundError:
            raise SignatureError(
                f"{path} is not signed ({file.name} is missing), and [trust] signers is set; have it signed with "
                f"`gainroute sign {'run' if path.is_dir() else 'file'} {path}`"
            ) from None
        except OSError as error:
            raise SignatureError(f"{file} cannot be read ({error.strerror}); copy it again") from error
        signed, _, last = body.rstrip(b"\n").rpartition(b"\n")
        lines = signed.decode("utf-8", errors="replace").split("\n")
        given = lines[1].removeprefix("signer ") if len(lines) > 1 else ""
        if len(body) > MAX_BYTES or lines[0] != HEADER or not SIGNER.fullmatch(given):
            raise SignatureError(f"{file} is not a signature of this format ({HEADER!r}); sign {path} again")
        if given not in self._keys:
            raise SignatureError(
                f"{path} is signed by {given}, who is not among [trust] signers; have it signed by one of them"
            )
        try:
            self._keys[given].verify(bytes.fromhex(last.decode("ascii").removeprefix("signature ")), signed)
        except (InvalidSignature, ValueError):
            raise SignatureError(
                f"the signature {file} is not valid: it was altered, or not made by {given}; sign {path} again"
            ) from None
        found = [ENTRY.fullmatch(line) for line in lines[2:]]
        entries = {match[3]: (match[1], int(match[2])) for match in found if match is not None}
        if len(entries) != len(found) or not entries or not all(map(_inside, entries)):
            raise SignatureError(f"{file} lists files in a way that this version does not read; sign {path} again")
        return entries


@contextmanager
def verified(path: Path, trust: Trust | None, only: tuple[str, ...] = ("",)) -> Iterator[Path]:
    """A private copy of a signed file or folder, to load from; without `trust` the path itself.

    Of a folder, the copy holds the signed files whose names start with one of `only`, and links to the unsigned views.
    """
    if trust is None:
        yield path
        return
    entries = trust.entries(path)
    with tempfile.TemporaryDirectory(prefix="gainroute-verified-") as private:
        if not path.is_dir():
            if len(entries) != 1:
                raise SignatureError(f"{signature_file(path)} lists {len(entries)} files; one is needed: sign it again")
            _copy(path, Path(private) / path.name, *entries.popitem()[1])
            yield Path(private) / path.name
            return
        home = Path(private) / path.name
        for name, (digest, size) in entries.items():
            if name.startswith(only):
                _copy(path / name, home / name, digest, size)
        views = PartyFolder(path).views
        if views.is_file() and home.is_dir():
            (home / views.name).symlink_to(views.absolute())
        yield home


def _copy(source: Path, target: Path, digest: str, size: int) -> None:
    """Copy a file; raises SignatureError unless the copy has this hash and size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not source.is_file() or source.stat().st_size != size:  # before a device or a huge file is read
            found = f"has {source.stat().st_size:,} bytes" if source.is_file() else "is missing"
            raise SignatureError(f"{source} {found}, but {size:,} bytes were signed; copy it again, or sign it again")
        with source.open("rb") as opened, target.open("wb") as out:
            left = size + 1
            while left and (block := opened.read(min(left, 1 << 20))):
                out.write(block)
                left -= len(block)
    except OSError as error:
        raise SignatureError(f"{source} cannot be copied to be verified ({error.strerror})") from error
    if hash_contents(target) != digest:
        raise SignatureError(f"{source} was altered after it was signed; copy the original again, or sign it again")


def _inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not name.startswith("/") and ".." not in parts and "\\" not in name


# ---- signing ----------------------------------------------------------------------------------------


def create_key(path: Path) -> str:
    """Create a signing key, readable by its owner only, and ``<name>.pub`` beside it; returns the signer's name."""
    public = path.with_suffix(".pub")
    for file in (path, public):
        if file.exists():
            raise SettingError(f"{file} exists already, and a key is never overwritten: name another file")
    key = Ed25519PrivateKey.generate()
    secret = _passphrase()
    lock = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    write_bytes(path, pem, private=True)
    write_bytes(public, f"{signer_name(key)}\n".encode())
    return signer_name(key)


def load_key(path: Path) -> Ed25519PrivateKey:
    """Load a signing key; a file that others may read is refused."""
    try:
        mode, pem = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): create a key with `gainroute sign key`") from error
    if mode & 0o077:
        raise SettingError(f"{path} can be read by other users of this machine: chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(pem, _passphrase())
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is not a signing key, or {VARIABLE} is missing or wrong ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(f"{path} is a {type(key).__name__}; an Ed25519 key is needed, from `gainroute sign key`")
    return key


def _passphrase() -> bytes | None:
    return os.environ.get(VARIABLE, "").encode() or None


def signer_name(key: Ed25519PrivateKey) -> str:
    """The public key as text, which `[trust] signers` lists."""
    return PREFIX + key.public_key().public_bytes_raw().hex()


def sign(path: Path, key: Ed25519PrivateKey) -> Path:
    """Sign a file, or all files of a folder that belong to its models; returns the signature file."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        names = {file.relative_to(path).as_posix(): file for file in files}
        unsigned = UNSIGNED if RunFolder(path).exists() else ()
        chosen = {name: file for name, file in names.items() if _signed(name) and name.split("/")[0] not in unsigned}
    else:
        chosen = {path.name: path}
    if not chosen:
        raise DataError(f"{path} contains no file to sign; name a router, a run or a folder of models")
    lines = [HEADER, f"signer {signer_name(key)}"]
    for name, file in sorted(chosen.items()):
        line = f"{hash_contents(file)} {file.stat().st_size} {name}"
        if not ENTRY.fullmatch(line):
            raise DataError(f"{file}: a name without control characters, of at most 1,000, is needed; rename it")
        lines.append(line)
    text = "\n".join(lines).encode()
    if len(text) > MAX_BYTES - 200:
        raise DataError(f"{path} holds {len(chosen):,} files, too many for one signature; sign its folders one by one")
    write_bytes(signature_file(path), text + b"\nsignature " + key.sign(text).hex().encode() + b"\n")
    return signature_file(path)


def sign_run(folder: Path, key: Ed25519PrivateKey) -> list[Path]:
    """Sign a run and each part that is copied elsewhere: parties, server, router. Or a party's or server's folder."""
    run = RunFolder(folder)
    if not run.exists():
        return [sign(folder, key)]
    parts = [party.path for name in run.party_names if (party := run.party(name)).exists()]
    return [sign(path, key) for path in (*parts, run.server.router, run.server.path, folder)]


def _signed(name: str) -> bool:
    """Whether a file of a folder is signed: not the views, which change, and nothing hidden."""
    parts = name.split("/")
    return parts[-1] != "views.npz" and not name.endswith(".sig") and not any(part.startswith(".") for part in parts)


def _public_name(signer: Path) -> str:
    if SIGNER.fullmatch(signer.name):
        return signer.name
    try:
        text = signer.read_bytes()[:200].decode("utf-8", errors="replace").strip()
    except OSError as error:
        raise SettingError(
            f"trust: signer {signer} cannot be read ({error.strerror}); a public key ed25519:… or a file with one is "
            "needed, from `gainroute sign key`"
        ) from None
    if not SIGNER.fullmatch(text):
        raise SettingError(f"trust: {signer} holds no public key; the .pub file of `gainroute sign key` is needed")
    return text
