"""`gainroute party` and `gainroute certs`: the party process, and the certificates of parties and coordinators."""

from __future__ import annotations

import os
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gainroute.cli._command import Command, needing
from gainroute.cli._options import Json
from gainroute.cli._output import print_json, print_table, table
from gainroute.errors import DataError, SettingError

if TYPE_CHECKING:
    from gainroute.federation.pki.certificates import Identity

__all__ = ["certs", "party"]

certs = typer.Typer(
    no_args_is_help=True, help="Create a private certificate authority, and certificates for parties and coordinators."
)

Role = Annotated[str, typer.Argument(metavar="ROLE", help="party or coordinator.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name, as in the settings of the other side.")]
Ca = Annotated[Path, typer.Option("--ca", metavar="FOLDER", help="The authority's folder, from `certs init`.")]
Days = Annotated[float, typer.Option(help="Validity in days.")]


def party(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="Settings; see deploy/party.example.toml.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Load everything, print what would be served, and stop.")
    ] = False,
    pseudonyms: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Print the pseudonyms of the real ids in FILE, one per line, and stop."),
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="With --pseudonyms: its name, if the party is in several.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout when it listens.")] = False,
) -> None:
    """Serve one party: answer the coordinators in its settings with posteriors and embeddings, never with a view.

    SIGTERM finishes the requests in flight and stops; SIGHUP looks for new model versions. Logs are JSON lines on
    stderr.
    """
    # gRPC writes lines to stderr that are not JSON; GRPC_VERBOSITY=INFO brings them back.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with needing("serving a party", "serve"):
        from gainroute.federation.party.process import PartyNode, run_party
        from gainroute.federation.party.settings import load_party_settings
    settings = load_party_settings(config)
    if check:
        node = PartyNode(settings)
        print_json(node.summary())
        node.close()
        return
    if pseudonyms is not None:
        from gainroute.federation.formation.pseudonyms import PseudonymTable

        aligned = PseudonymTable.of_federation(settings.training.folder, federation)
        found = aligned.pseudonyms_of(pseudonyms.read_bytes().splitlines())
        if json:
            print_json({"pseudonyms": found})
        else:
            typer.echo("\n".join(found))
        return
    run_party(settings, (lambda started: typer.echo(dumps(started))) if json else None)


def _identity(role: str, name: str) -> Identity:
    with needing("creating certificates", "serve"):
        from gainroute.federation.pki.certificates import Identity
    return Identity(role, name)


def _passphrase() -> bytes | None:
    return os.environ.get("GAINROUTE_CA_PASSPHRASE", "").encode() or None


@certs.command(cls=Command)
def init(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where ca.crt and ca.key go.")],
    name: Annotated[str, typer.Option(help="Name of the issuer.")] = "gainroute",
    days: Days = 3650,
) -> None:
    """Create a private certificate authority. ca.key stays in that folder; ca.crt goes to everyone.

    If GAINROUTE_CA_PASSPHRASE is set, the key is encrypted with it.
    """
    _identity("party", name)
    from gainroute.federation.pki.authority import Authority

    Authority.create(out, name=name, days=days, passphrase=_passphrase())
    typer.echo(f"{out / 'ca.crt'}  copy this to every party and coordinator")
    typer.echo(f"{out / 'ca.key'}  keep this here, with a backup offline")


@certs.command(cls=Command)
def request(
    role: Role,
    name: Name,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where key and request go.")] = Path(),
) -> None:
    """Create a key and a signing request, where the certificate will be used. Only the request is sent.

    If there is a key already, the new one is written beside it, until `certs install` adds its certificate.
    """
    identity = _identity(role, name)
    from gainroute._util.files import write_bytes
    from gainroute.federation.pki.authority import make_request

    out.mkdir(parents=True, exist_ok=True)
    key = out / f"{identity.label}.key"
    key = key.with_name(f"{key.name}.next") if key.exists() else key
    private, asked = make_request(identity)
    write_bytes(key, private, private=True)
    write_bytes(out / f"{identity.label}.csr", asked)
    typer.echo(f"{key}  keep this here")
    typer.echo(f"{out / identity.label}.csr  send this to the holder of the authority")


@certs.command(cls=Command)
def sign(
    role: Role,
    name: Name,
    asked: Annotated[Path, typer.Argument(metavar="REQUEST", help="The .csr file received.")],
    ca: Ca,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the certificate goes.")],
    days: Days = 90,
) -> None:
    """Sign a request for the role and name given here; a request that names another one is refused."""
    identity = _identity(role, name)
    from gainroute._util.files import write_bytes
    from gainroute.federation.pki.authority import Authority
    from gainroute.federation.pki.certificates import read_certificate

    signed = Authority.load(ca, _passphrase()).sign(asked.read_bytes(), identity, days=days)
    write_bytes(out, signed)
    info = read_certificate(signed)
    typer.echo(f"{out}  {role} {name}, until {info.not_after:%Y-%m-%d}, sha256 {info.fingerprint}")


@certs.command(cls=Command)
def install(
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The .crt file received.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the key was created.")] = Path(),
) -> None:
    """Put a signed certificate beside its key. A running process uses it without a restart."""
    _identity("party", "any")
    from gainroute._util.files import write_bytes
    from gainroute.federation.pki.certificates import key_matches, read_certificate

    pem = certificate.read_bytes()
    info = read_certificate(pem, str(certificate))
    if info.identity is None:
        raise DataError(f"{certificate} carries no gainroute identity: have it signed with `gainroute certs sign`")
    key = out / f"{info.identity.label}.key"
    waiting = key.with_name(f"{key.name}.next")
    fitting = [path for path in (waiting, key) if path.is_file() and key_matches(pem, path.read_bytes())]
    if not fitting:
        raise SettingError(f"{out} holds no key for {certificate}: run this where `certs request` was run")
    if fitting[0] == waiting:
        write_bytes(key, waiting.read_bytes(), private=True)
        waiting.unlink()
    target = key.with_suffix(".crt")
    write_bytes(target, pem)
    typer.echo(f"{target}  {info.identity.role} {info.identity.name}, until {info.not_after:%Y-%m-%d}")


@certs.command(cls=Command)
def issue(
    role: Role,
    name: Name,
    ca: Ca,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where key and certificate go.")],
    days: Days = 90,
) -> None:
    """Request, sign and install in one step: for trials, where authority and holder are the same."""
    identity = _identity(role, name)
    from gainroute.federation.pki.authority import Authority

    files = Authority.load(ca, _passphrase()).issue(identity, out, days=days)
    typer.echo(f"{files.certificate}\n{files.key}\n{files.ca}")


@certs.command(cls=Command, name="mask-key")
def mask_key(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the key goes, such as mask.key.")],
) -> None:
    """Create a party's masking key for [privacy] round1 = "masked", or show the public key of one that exists.

    The operators of the other parties put the public key into their [privacy.peers]. Hand it to them yourself: a
    coordinator that passes keys on could exchange them.
    """
    _identity("party", "any")
    from gainroute.federation.masking import create_mask_key, load_mask_key, public_text

    exists = out.exists()
    public = public_text(load_mask_key(out).public_key().public_bytes_raw()) if exists else create_mask_key(out)
    typer.echo(f"{out}  keep this here")
    typer.echo(f"{public}  give this to the operators of the other parties, for their [privacy.peers]")


@certs.command(cls=Command)
def status(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Certificates, or folders of them.")],
    warn_days: Annotated[float, typer.Option(help="Exit with 1 if a certificate expires sooner.")] = 0,
    json: Json = False,
) -> None:
    """Show the holders of certificates, their fingerprints, and the days left."""
    _identity("party", "any")
    from gainroute.federation.pki.certificates import read_certificate

    files = [file for path in paths for file in (sorted(path.rglob("*.crt")) if path.is_dir() else [path])]
    if not files:
        raise DataError(f"{', '.join(map(str, paths))}: there is no .crt file; name certificates or folders of them")
    found: list[dict[str, Any]] = []
    for file in files:
        info = read_certificate(file.read_bytes(), str(file))
        role, name = ("authority", "–") if info.identity is None else (info.identity.role, info.identity.name)
        dates = {"days_left": round(info.days_left(), 2), "until": info.not_after.isoformat()}
        found.append({"file": str(file), "role": role, "name": name, **dates, "sha256": info.fingerprint})
    if json:
        print_json({"certificates": found})
    else:
        shown = table("file", "role", "name", "days left", "until", "sha256")
        for entry in found:
            left = f"{entry['days_left']:.1f}"
            shown.add_row(entry["file"], entry["role"], entry["name"], left, entry["until"][:10], entry["sha256"])
        print_table(shown)
    if min(entry["days_left"] for entry in found) < warn_days:
        raise typer.Exit(1)
