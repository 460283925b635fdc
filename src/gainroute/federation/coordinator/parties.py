"""The connections to the parties: their state, and which deployments they fit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import HandshakeError, PartyMissingError
from gainroute.federation.coordinator.handshake import check_fusion, class_names, differences, dimension
from gainroute.federation.transport.base import (
    PartyConnection,
    PartyDescription,
    PartyError,
    PartyRefusedError,
    PartyUnavailableError,
)

__all__ = ["LinkState", "PartyLink", "PartyLinks"]

log = logging.getLogger("gainroute.coordinator")

LinkState = Literal["connecting", "ok", "unavailable", "refused", "mismatch"]
REMEMBERED = 8  # deployments


@dataclass(eq=False)
class PartyLink:
    """A party's connection and state."""

    connection: PartyConnection
    description: PartyDescription | None = None  # the last one
    state: LinkState = "connecting"
    error: str = ""  # the reason of the state
    since: float = field(default_factory=time.time)  # of the state
    last_seen: float | None = None  # time of its last answer
    latency_ms: float | None = None  # of the last health check
    # Length of its embeddings by the hash of each deployment it fits. It is asked for no other deployment.
    dimensions: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The party's name."""
        return self.connection.name

    def set_state(self, state: LinkState, error: str = "") -> None:
        """Record the state; a change is logged."""
        if state != self.state:
            self.since = time.time()
            level = logging.INFO if state == "ok" else logging.WARNING
            log.log(level, "party %s is %s", self.name, state, extra={"party": self.name, "error": error})
        self.state, self.error = state, error
        if state == "ok":
            self.last_seen = time.time()

    def failed(self, error: PartyError) -> None:
        """Record that it did not answer."""
        self.set_state("refused" if isinstance(error, PartyRefusedError) else "unavailable", str(error))

    async def describe(self, seconds: float) -> PartyDescription:
        """Ask for its description."""
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


class PartyLinks:
    """All parties, in the order of the route table; each may take `seconds` to describe itself."""

    def __init__(self, connections: Sequence[PartyConnection], seconds: float) -> None:
        self.links: Mapping[str, PartyLink] = {c.name: PartyLink(c) for c in connections}
        self._seconds = seconds

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of the route table."""
        return tuple(self.links)

    def descriptions(self) -> dict[str, PartyDescription]:
        """Descriptions of the parties that have answered."""
        return {name: link.description for name, link in self.links.items() if link.description is not None}

    def lengths(self, deployment: Deployment) -> list[int] | None:
        """Length of every party's embeddings; None while a party is not known to fit."""
        found = [self.links[name].dimensions.get(deployment.hash) for name in deployment.parties]
        return None if None in found else [n for n in found if n is not None]

    async def handshake(self, deployment: Deployment) -> dict[str, PartyError]:
        """Ask every party for its description and check it; returns the errors of those that do not answer.

        Raises
        ------
        HandshakeError
            A party does not fit; the message lists the differences of all parties.
        """
        links = list(self.links.values())
        asked = await asyncio.gather(*(link.describe(self._seconds) for link in links), return_exceptions=True)
        absent: dict[str, PartyError] = {}
        wrong: list[str] = []
        for link, found in zip(links, asked, strict=True):
            if isinstance(found, PartyError):
                absent[link.name] = found
            elif isinstance(found, BaseException):
                raise found
        for link in links:
            if link.name not in absent:
                wrong += [f"party {link.name!r}: {why}" for why in self._fit(deployment, link)]
        if wrong:
            raise HandshakeError(
                f"the parties do not fit the router {deployment.path} ({deployment.name}): " + "; ".join(wrong)
            )
        lengths = self.lengths(deployment)
        if lengths is not None:
            await asyncio.to_thread(check_fusion, deployment, lengths)
        return absent

    async def confirm(self, deployment: Deployment, what: str) -> None:
        """Raise unless every party answers and has the models."""
        absent = await self.handshake(deployment)
        if absent:
            found = "; ".join(map(str, absent.values()))
            raise PartyMissingError(f"{what} needs every party to confirm that it has the models: {found}")

    def _fit(self, deployment: Deployment, link: PartyLink) -> list[str]:
        """Check a party by its last description, record the result, and return the differences."""
        if link.description is None:
            return ["it has not described itself yet"]
        names = class_names(deployment, self.descriptions())
        wrong = differences(deployment, link.name, link.description, names)
        length = dimension(deployment, link.description) if not wrong else None
        if length is None:
            link.dimensions.pop(deployment.hash, None)
            return wrong
        link.dimensions[deployment.hash] = length
        while len(link.dimensions) > REMEMBERED:
            link.dimensions.pop(next(iter(link.dimensions)))
        return []

    async def check_health(self, deployment: Deployment) -> None:
        """Check every party once and record its state."""

        async def check(link: PartyLink) -> None:
            with contextlib.suppress(PartyError):
                await link.describe(self._seconds)
                known = deployment.hash in link.dimensions
                wrong = self._fit(deployment, link)
                link.set_state("mismatch" if wrong else "ok", "; ".join(wrong))
                lengths = self.lengths(deployment)
                if not known and lengths is not None:
                    await asyncio.to_thread(check_fusion, deployment, lengths)

        links = list(self.links.values())
        done = await asyncio.gather(*(check(link) for link in links), return_exceptions=True)
        for link, result in zip(links, done, strict=True):
            if isinstance(result, HandshakeError):
                link.dimensions.pop(deployment.hash, None)
                link.set_state("mismatch", str(result))
            elif isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(link.connection.close() for link in self.links.values()), return_exceptions=True)
