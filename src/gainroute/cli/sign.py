"""`gainroute sign`: sign routers and runs, and verify signatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gainroute.cli._command import Command, needing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["SignKey", "read_key", "sign", "sign_written"]

sign = typer.Typer(no_args_is_help=True, help="Sign routers and runs (Ed25519), and verify signatures.")

Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="The signing key, from `sign key`.")]
SignKey = Annotated[
    Path | None,
    typer.Option("--sign-key", metavar="FILE", help="Sign what is written with this key, from `gainroute sign key`."),
]


def read_key(path: Path) -> Ed25519PrivateKey:
    """Load a signing key."""
    with needing("signing", "serve"):
        from gainroute.federation.pki.signatures import load_key
    return load_key(path)


def sign_written(folder: Path, key: Ed25519PrivateKey) -> list[Path]:
    """Sign a run and its parts; returns the signature files."""
    from gainroute.federation.pki.signatures import sign_run

    return sign_run(folder, key)


@sign.command(cls=Command)
def key(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the private key goes: signer.key.")],
) -> None:
    """Create a signing key, and its public key beside it (.pub). Keep the private key off the serving machines.

    If GAINROUTE_SIGNING_PASSPHRASE is set, the key is encrypted with it.
    """
    with needing("signing", "serve"):
        from gainroute.federation.pki.signatures import create_key
    name = create_key(out)
    typer.echo(f"{out}  keep this, with a backup offline")
    typer.echo(f"{out.with_suffix('.pub')}  list it on every party and coordinator, or the key itself:")
    typer.echo(f'[trust]\nsigners = ["{name}"]')


@sign.command(cls=Command)
def file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A router, or a table of precomputed answers.")], key: Key
) -> None:
    """Sign one file: a router, or precomputed answers. The signature goes to FILE.sig."""
    private = read_key(key)
    from gainroute.federation.pki.signatures import sign as sign_path

    typer.echo(sign_path(path, private))


@sign.command(cls=Command)
def run(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run, or a folder of models.")], key: Key
) -> None:
    """Sign a run and each part of it that is copied elsewhere: parties, server, router. Or one folder of models.

    A folder's signature is run.sig inside it. The views in a party's folder are not signed, since they change.
    """
    for written in sign_written(folder, read_key(key)):
        typer.echo(written)


@sign.command(cls=Command)
def verify(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Signed files and folders.")],
    signer: Annotated[
        list[str], typer.Option("--signer", metavar="KEY", help="A public key ed25519:…, or a .pub file; repeatable.")
    ],
) -> None:
    """Verify files and folders as a party or coordinator with these [trust] signers does."""
    with needing("verifying signatures", "serve"):
        from gainroute.federation.pki.signatures import Trust, verified
    trust = Trust(signer)
    for path in paths:
        with verified(path, trust):
            typer.echo(f"{path}  signed, {len(trust.entries(path))} files unaltered")
