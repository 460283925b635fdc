"""The parties as the coordinator knows them: who is there, who fits the version in use, and since when."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gainroute.federation.coordinator.deployment import Version
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.coordinator.handshake import check_fusion, class_names, differences, dimension
from gainroute.federation.transport.base import (
    PartyConnection,
    PartyDescription,
    PartyError,
    PartyRefusedError,
    PartyUnavailableError,
)

__all__ = ["Link", "Parties", "State"]

log = logging.getLogger("gainroute.coordinator")

State = Literal["connecting", "ok", "unavailable", "refused", "mismatch"]


@dataclass(eq=False)
class Link:
    """A party and what is known of it.

    Attributes
    ----------
    connection
        How it is reached.
    description
        What it last said of itself.
    state, error, since
        How it is, why, and since when.
    last_seen
        When it last answered anything.
    latency_ms
        What its last health check took.
    dimensions
        Length of its embeddings by the hash of each version it fits: it is asked for none that is not in here.
    """

    connection: PartyConnection
    description: PartyDescription | None = None
    state: State = "connecting"
    error: str = ""
    since: float = field(default_factory=time.time)
    last_seen: float | None = None
    latency_ms: float | None = None
    dimensions: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The party's name."""
        return self.connection.name

    def is_now(self, state: State, error: str = "") -> None:
        """Note how it is; a change is worth a line in the log."""
        if state != self.state:
            self.since = time.time()
            level = logging.INFO if state == "ok" else logging.WARNING
            log.log(level, "party %s is %s", self.name, state, extra={"party": self.name, "error": error})
        self.state, self.error = state, error
        if state == "ok":
            self.last_seen = time.time()

    def failed(self, error: PartyError) -> None:
        """Note that it did not answer a round."""
        self.is_now("refused" if isinstance(error, PartyRefusedError) else "unavailable", str(error))

    async def describe(self, seconds: float) -> PartyDescription:
        """Ask who it is."""
        began = time.perf_counter()
        try:
            self.description = await asyncio.wait_for(self.connection.describe(), seconds)
        except asyncio.TimeoutError:
            error = PartyUnavailableError(self.name, f"did not describe itself within {seconds:g} s")
            self.failed(error)
            raise error from None
        except PartyError as error:
            self.failed(error)
            raise
        self.latency_ms = 1e3 * (time.perf_counter() - began)
        self.last_seen = time.time()
        return self.description


class Parties:
    """All of them.

    Parameters
    ----------
    connections
        In the order of the route table.
    seconds
        How long a party may take to describe itself.
    """

    def __init__(self, connections: Sequence[PartyConnection], seconds: float) -> None:
        self.links: Mapping[str, Link] = {c.name: Link(c) for c in connections}
        self._seconds = seconds

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of the route table."""
        return tuple(self.links)

    def descriptions(self) -> dict[str, PartyDescription]:
        """What those that have spoken say of themselves."""
        return {name: link.description for name, link in self.links.items() if link.description is not None}

    def lengths(self, version: Version) -> list[int] | None:
        """Length of every party's embeddings; None while a party is not known to fit."""
        found = [self.links[name].dimensions.get(version.hash) for name in version.parties]
        return None if None in found else [n for n in found if n is not None]

    async def shake(self, version: Version) -> dict[str, PartyError]:
        """Ask every party who it is, and check those that answer; returns those that do not.

        Raises
        ------
        HandshakeError
            A party does not fit; the message says what differs, for all of them.
        """
        links = list(self.links.values())
        asked = await asyncio.gather(*(link.describe(self._seconds) for link in links), return_exceptions=True)
        absent: dict[str, PartyError] = {}
        for link, found in zip(links, asked, strict=True):
            if isinstance(found, PartyError):
                absent[link.name] = found
            elif isinstance(found, BaseException):
                raise found
        wrong = [
            f"party {link.name!r}: {why}"
            for link in links
            if link.name not in absent
            for why in self.fit(version, link)
        ]
        if wrong:
            raise HandshakeError(
                f"the parties do not fit the router {version.path} ({version.name}): " + "; ".join(wrong)
            )
        lengths = self.lengths(version)
        if lengths is not None:
            await asyncio.to_thread(check_fusion, version, lengths)
        return absent

    def fit(self, version: Version, link: Link) -> list[str]:
        """Check one party by its last description, and note the outcome."""
        if link.description is None:
            return ["it has not described itself yet"]
        wrong = differences(version, link.name, link.description, class_names(version, self.descriptions()))
        length = dimension(version, link.description) if not wrong else None
        if length is None:
            link.dimensions.pop(version.hash, None)
            return wrong
        link.dimensions[version.hash] = length
        while len(link.dimensions) > 8:  # versions long gone
            link.dimensions.pop(next(iter(link.dimensions)))
        return []

    async def watch(self, version: Version) -> None:
        """One round of health checks: no exception, only notes."""

        async def look(link: Link) -> None:
            with contextlib.suppress(PartyError):
                await link.describe(self._seconds)
                known = version.hash in link.dimensions
                wrong = self.fit(version, link)
                link.is_now("mismatch" if wrong else "ok", "; ".join(wrong))
                lengths = self.lengths(version)
                if not known and lengths is not None:
                    await asyncio.to_thread(check_fusion, version, lengths)

        links = list(self.links.values())
        done = await asyncio.gather(*(look(link) for link in links), return_exceptions=True)
        for link, outcome in zip(links, done, strict=True):
            if isinstance(outcome, HandshakeError):
                link.dimensions.pop(version.hash, None)
                link.is_now("mismatch", str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome

    async def close(self) -> None:
        """Let go of all connections."""
        await asyncio.gather(*(link.connection.close() for link in self.links.values()), return_exceptions=True)
