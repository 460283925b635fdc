"""The connections to the parties: their state, and which deployments they fit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

import numpy as np

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.circuit import Circuit
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import HandshakeError, PartyMissingError
from gainroute.federation.coordinator.masked import masking_differences
from gainroute.federation.coordinator.settings import RoundSettings
from gainroute.federation.transport.base import (
    PartyConnection,
    PartyDescription,
    PartyError,
    PartyRefusedError,
    PartyUnavailableError,
    Reply,
)

__all__ = ["LinkState", "PartyLink", "PartyLinks", "Probe"]

log = logging.getLogger("gainroute.coordinator")

LinkState = Literal["connecting", "ok", "unavailable", "refused", "mismatch"]
REMEMBERED = 8  # deployments


@dataclass
class Probe:
    """A request for one sample, to find out whether a party answers again; for the log of what parties were asked."""

    id: str
    round: int
    party: str
    answered: bool = False


@dataclass(eq=False)
class PartyLink:
    """A party's connection and state."""

    connection: PartyConnection
    circuits: Mapping[int, Circuit]  # by round
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
        self.set_state("refused" if isinstance(error, PartyRefusedError) else "unavailable", error.reason)

    def ask(self, number: int, deployment: Deployment, ids: Sequence[str], request_id: str) -> Awaitable[Reply]:
        """Ask for posteriors (Round 1) or embeddings (Round 2) by the models of a deployment."""
        model = deployment.model(self.name)
        if number == 1:
            return self.connection.posteriors(ids, model=model, request_id=request_id)
        return self.connection.embeddings(ids, model=model, codec=deployment.codec, request_id=request_id)

    async def probe(self, number: int, deployment: Deployment, seconds: float) -> list[Probe]:
        """Ask for one sample if a probe of this round's circuit is due; returns what was asked for."""
        circuit, made = self.circuits[number], list[Probe]()
        if not circuit.probe():
            return made
        sample = circuit.sample
        for round_ in range(1, number + 1):  # a party may give an embedding only after Round 1
            probe = Probe(f"probe-{uuid4().hex}", round_, self.name)
            asked = asyncio.ensure_future(self.ask(round_, deployment, [sample], probe.id))
            made.append(probe)
            await asyncio.wait({asked}, timeout=seconds)
            if not asked.done():
                asked.cancel()
                circuit.late(sample)
                return made
            # An error is an answer too: its reason is recorded when the party is asked again.
            probe.answered = asked.exception() is None
        circuit.answered()
        log.info("party %s answers again in Round %d", self.name, number, extra={"party": self.name})
        return made

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
            if isinstance(error, PartyRefusedError):
                self.dimensions.clear()  # it describes itself as someone else, or not at all: it is not asked any more
            self.failed(error)
            raise
        self.latency_ms = 1e3 * (time.perf_counter() - began)
        self.last_seen = time.time()
        return self.description


class PartyLinks:
    """All parties, in the order of the route table. `clock` returns monotonic seconds."""

    def __init__(
        self,
        connections: Sequence[PartyConnection],
        settings: RoundSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = settings.one_seconds
        self._deadlines = {1: settings.one_seconds, 2: settings.two_seconds}

        def link(connection: PartyConnection) -> PartyLink:
            how = settings.circuit_failures, settings.circuit_seconds, clock
            return PartyLink(connection, {number: Circuit(*how) for number in self._deadlines})

        self.links: Mapping[str, PartyLink] = {c.name: link(c) for c in connections}

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of the route table."""
        return tuple(self.links)

    def missing(self, name: str, deployment: Deployment, round_: int) -> PartyUnavailableError | None:
        """Why a party cannot be asked in a round; None if it can."""
        link = self.links[name]
        if deployment.hash not in link.dimensions:
            return PartyUnavailableError(name, link.error or "no handshake yet")
        if link.circuits[round_].state != "closed":
            return PartyUnavailableError(name, link.circuits[round_].reason)
        return None

    def class_names(self, deployment: Deployment) -> tuple[str, ...]:
        """Names of the classes: the router's, else those of the parties, else the column numbers."""
        if deployment.class_names:
            return deployment.class_names
        k = deployment.router.n_classes_
        known = (self.links[name].description for name in deployment.parties)
        given = next((description.classes for description in known if description is not None), ())
        return given if len(given) == k else tuple(map(str, range(k)))

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
            await asyncio.to_thread(_check_fusion, deployment, lengths)
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
        wrong = _differences(deployment, link.name, link.description, self.class_names(deployment))
        others = {name: other.description for name, other in self.links.items() if other.description is not None}
        wrong += masking_differences(deployment, link.connection, link.description, others)
        length = _dimension(deployment, link.description) if not wrong else None
        if length is None:
            link.dimensions.pop(deployment.hash, None)
            return wrong
        link.dimensions[deployment.hash] = length
        while len(link.dimensions) > REMEMBERED:
            link.dimensions.pop(next(iter(link.dimensions)))
        return []

    async def check_health(self, deployment: Deployment) -> list[Probe]:
        """Check every party once and record its state; returns the probes that were sent."""
        probes: list[Probe] = []

        async def check(link: PartyLink) -> None:
            with contextlib.suppress(PartyError):
                await link.describe(self._seconds)
                known = deployment.hash in link.dimensions
                wrong = self._fit(deployment, link)
                if wrong:
                    link.set_state("mismatch", "; ".join(wrong))
                    return
                for number, seconds in self._deadlines.items():
                    probes.extend(await link.probe(number, deployment, seconds))
                if link.circuits[1].state == "closed":
                    link.set_state("ok")
                else:
                    link.set_state("unavailable", link.circuits[1].reason)
                lengths = self.lengths(deployment)
                if not known and lengths is not None:
                    await asyncio.to_thread(_check_fusion, deployment, lengths)

        links = list(self.links.values())
        done = await asyncio.gather(*(check(link) for link in links), return_exceptions=True)
        for link, result in zip(links, done, strict=True):
            if isinstance(result, HandshakeError):
                link.dimensions.pop(deployment.hash, None)
                link.set_state("mismatch", str(result))
            elif isinstance(result, asyncio.CancelledError):  # by its transport: the checks go on
                link.set_state("unavailable", "its health check was cancelled")
            elif isinstance(result, BaseException):
                raise result
        return probes

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(link.connection.close() for link in self.links.values()), return_exceptions=True)


# ---- whether a party fits a deployment ---------------------------------------------------------------


def _dimension(deployment: Deployment, description: PartyDescription) -> int | None:
    """Length of a party's embeddings for the router's models; None if the party does not have these models."""
    wanted = deployment.model(description.name)
    return next((m.dimension for m in description.models if m.hash == wanted), None)


def _differences(deployment: Deployment, name: str, description: PartyDescription, classes: Sequence[str]) -> list[str]:
    """List what keeps a party from answering for a deployment; `classes` are the names it must have, in this order."""
    found: list[str] = []
    if description.name != name:
        return [f"it calls itself {description.name!r}, the route table says {name!r}"]
    if list(description.classes) != list(classes):
        same = sorted(description.classes) == sorted(classes)
        kind = "are in another order" if same else "differ"
        found.append(f"its classes {kind}: {_some(description.classes)}, {_some(classes)} is needed")
    length = _dimension(deployment, description)
    if length is None:
        has = ", ".join(m.hash for m in description.models[:12]) or "none"
        wanted = deployment.model(name)
        found.append(f"it does not have the models {wanted}; it has {has}: add that version at the party")
    if deployment.fusion.wants_embeddings and deployment.codec not in description.codecs:
        has = ", ".join(description.codecs) or "none"
        found.append(f"it does not offer the codec {deployment.codec!r}; it offers {has}")
    return found


def _check_fusion(deployment: Deployment, lengths: Sequence[int]) -> None:
    """Fuse random embeddings of the parties' dimensions, so that a wrong fusion fails now and not in Round 2."""
    fusion, k = deployment.fusion, deployment.router.n_classes_
    if not fusion.wants_embeddings:
        return
    rng = np.random.default_rng(0)
    probe = [rng.normal(size=(2, n)).astype(np.float32) for n in lengths]
    try:
        given = np.asarray(fusion.fuse(probe))
        if deployment.router.subset_routers_ and len(lengths) > 1:
            first = np.arange(len(lengths)) == 0
            np.asarray(fusion.fuse.masked(probe, first))  # type: ignore[attr-defined] # checked when it was loaded
    except (GainrouteError, RuntimeError, ValueError, TypeError, IndexError) as error:
        raise HandshakeError(
            f"the fusion {fusion.source} does not take embeddings of lengths {list(lengths)} ({error}), which the "
            f"parties {list(deployment.parties)} send: correct the order of the route table, or the fusion"
        ) from error
    if given.shape not in {(2, k), (2,)}:
        raise HandshakeError(
            f"the fusion {fusion.source} answers two samples with shape {given.shape}; (2, {k}) posteriors or (2,) "
            "predictions are needed"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return f"[{shown}]" if len(names) <= 12 else f"[{shown}, … {len(names)} in all]"
