"""`gainroute audit`: verify audit trails, find a sample in them, compare a coordinator with a party."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gainroute.cli._command import Command, needing
from gainroute.cli._options import Json
from gainroute.cli._output import print_json, print_table, table
from gainroute.errors import SettingError

if TYPE_CHECKING:
    from gainroute.federation.audit_compare import Comparison, Message
    from gainroute.federation.audit_trail import Trail

__all__ = ["audit", "compare", "find", "verify"]

audit = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Verify, search and compare audit trails.")

SHOWN = 10
KINDS = ("matched", "unanswered", "only coordinator", "only party", "differing")
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Files of a party's audit log in any order, such as audit.jsonl*, also compressed; or a decision log.",
    ),
]
Key = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The key of the audit trail; by default the .key file beside it.")
]


@audit.command(cls=Command, short_help="Verify that no line was changed, removed or inserted.")
def verify(
    files: Files,
    key: Key = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER:CHAIN", help="A head that was kept elsewhere: its line, and all before it, must be there."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Verify a hash-chained audit trail and name the first broken line.

    Exit code 0 if it is intact, 1 if it is broken or not chained. Lines removed at the end are noticed if their head
    was kept: by the party itself (audit.jsonl.head), or elsewhere (--head).
    """
    from gainroute.federation.audit_chain import parse_head, read_key
    from gainroute.federation.audit_trail import guess_key, heads, trail_files
    from gainroute.federation.audit_trail import verify as verified

    known = heads(files)  # first: the files may be growing
    if head is not None:
        try:
            known |= [parse_head(head)]
        except ValueError as error:
            raise SettingError(f"--head: {error}") from None
    trail = verified(trail_files(files), read_key(key or guess_key(files)), known)
    if json:
        print_json({"status": trail.status, **vars(trail)})
    else:
        typer.echo(_told(trail))
    if trail.status != "intact":
        raise typer.Exit(1)


def _told(trail: Trail) -> str:
    lines = []
    if trail.problem:
        lines.append(f"BROKEN at {trail.problem}")
    if trail.first:
        until = "verified up to there" if trail.problem else "intact"
        lines.append(f"lines {trail.first:,} to {trail.last:,}: {until}; head {trail.head}")
    if trail.first > 1:
        lines.append(f"lines 1 to {trail.first - 1:,} are not in these files")
    if trail.unchained:
        lines.append(f"{trail.unchained:,} lines are not chained: an older version wrote them")
    if trail.torn:
        lines.append(f"{trail.torn:,} incomplete lines, each acknowledged by the line after it: a crash or a full disk")
    if trail.incomplete:
        lines.append("the last line is incomplete; the next one will acknowledge it")
    return "\n".join(lines or ["no lines"])


@audit.command(cls=Command, short_help="Find the requests that were about one sample.")
def find(
    sample: Annotated[str, typer.Argument(metavar="ID", help="Id of the sample, as in requests to the party.")],
    files: Files,
    key: Key = None,
    json: Json = False,
) -> None:
    """Find the lines of an audit trail that name a sample, by its pseudonym. Needs the trail's key.

    Exit code 0 if there are any, 1 if there is none.
    """
    from gainroute.federation.audit_chain import read_key
    from gainroute.federation.audit_trail import find_sample, guess_key

    found = list(find_sample(files, read_key(key or guess_key(files)), sample))
    if json:
        print_json({"sample": sample, "lines": [{"where": where, **entry} for where, entry in found]})
    elif found:
        shown = table("time", "who", "what", "request id", "line")
        for where, entry in found:
            who, what = entry.get("coordinator", entry.get("who")), entry.get("action", f"Round {entry.get('round')}")
            when = entry["time"] if isinstance(entry["time"], str) else _moment(entry["time"])
            shown.add_row(when, str(who), what, str(entry["request_id"])[:60], where)
        print_table(shown)
    else:
        typer.echo("no line names this sample")
    if not found:
        raise typer.Exit(1)


@audit.command(cls=Command, short_help="Compare a coordinator's log with a party's.")
def compare(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The coordinator's decision log.")],
    files: Files,
    party: Annotated[str | None, typer.Option(help="Name of the party, if its files do not have it.")] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="Name of the coordinator, if the party answers several.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Start of the period, in UTC.", show_default="when both logs have begun")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="End of the period, in UTC; use it while both are running.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare what a coordinator asked a party for with what the party answered, message by message.

    A message is one batch in one round. Exit code 0 if both sides agree, 1 if a message is on one side only or the
    numbers of samples differ. A message that only the party has was sent by someone else with the coordinator's key, or
    its row was deleted.
    """
    with needing("reading a decision log", "serve"):
        from gainroute.federation.audit_compare import compare_audit
    found = compare_audit(
        log, files, party=party, coordinator=coordinator, since=None if since is None else _seconds(since),
        until=float("inf") if until is None else _seconds(until),
    )  # fmt: skip
    if json:
        print_json(_as_json(found))
    else:
        _show(found)
    if not found.agrees:
        raise typer.Exit(1)


def _as_json(found: Comparison) -> dict[str, Any]:
    def listed(kind: str) -> list[dict[str, Any]]:
        return [_message_json(message) for message in found.messages if message.kind == kind]

    counts = {
        kind.replace(" ", "_"): dict(zip(("messages", "samples"), found.count(kind), strict=True)) for kind in KINDS
    }
    return {
        "party": found.party, "coordinator": found.coordinator, "agrees": found.agrees, **counts,
        "lines": {kind.replace(" ", "_"): listed(kind) for kind in KINDS[2:]},
        "since": found.since, "until": found.until, "outside": found.outside, "other_lines": found.other_lines,
    }  # fmt: skip


def _message_json(message: Message) -> dict[str, Any]:
    return vars(message) | {"time": _moment(message.time)}


def _show(found: Comparison) -> None:
    shown = table("messages (samples)", "Round 1", "Round 2")
    for kind in KINDS:
        cells = (found.count(kind, round_) for round_ in (1, 2))
        shown.add_row(kind, *(f"{n:,} ({samples:,})" if n else "–" for n, samples in cells))
    print_table(shown, f"coordinator {found.coordinator or '?'} and party {found.party or '?'}")
    for message in [m for m in found.messages if m.kind in KINDS[2:]][:SHOWN]:
        sides = f"asked for {_number(message.asked)} samples, answered {_number(message.answered)}"
        typer.echo(f"{message.kind}: {message.batch}, Round {message.round}, {_moment(message.time)}: {sides}")
    if found.outside:
        typer.echo(f"{found.outside:,} messages that one side has are outside the period, which starts at "
                   f"{_moment(found.since)}")  # fmt: skip
    typer.echo("both sides agree" if found.agrees else "the two sides DIFFER")


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _seconds(when: datetime) -> float:
    return when.replace(tzinfo=when.tzinfo or timezone.utc).timestamp()


def _moment(seconds: float) -> str:
    from gainroute.federation.logging import timestamp

    return timestamp(seconds) if abs(seconds) < 1e11 else "–"
