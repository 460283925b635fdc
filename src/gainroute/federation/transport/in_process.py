"""A party in the coordinator's own process: for tests, and where one organisation holds every view."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gainroute.errors import InputError, SettingError
from gainroute.federation.party.model import ModelVersion, is_temporary
from gainroute.federation.transport.base import PartyDescription, PartyRefusedError, PartyUnavailableError, Reply
from gainroute.io.ids import id_texts
from gainroute.routing.payload import CODECS, decode, encode

if TYPE_CHECKING:
    from gainroute.federation.pki.certificates import CertificateFiles

__all__ = ["InProcessConnection", "connect_in_process"]


class InProcessConnection:
    """A `PartyConnection` to model versions in this process.

    Parameters
    ----------
    name
        Name of the party.
    versions
        One or more model versions with the same classes; `gainroute.federation.party.model.version_of` makes them.
    """

    def __init__(self, name: str, versions: Iterable[ModelVersion]) -> None:
        self.name = name
        self._versions = {version.model.hash: version for version in versions}
        classes = next(iter(self._versions.values())).classes
        models = tuple(version.model for version in self._versions.values())
        self._description = PartyDescription(name, classes, models, CODECS)

    async def describe(self) -> PartyDescription:
        """Describe the party."""
        return self._description

    async def posteriors(self, ids: Sequence[Any], *, model: str, request_id: str) -> Reply:  # noqa: ARG002 (no log)
        """Round 1: local posteriors from the model version with this hash."""
        return await self._ask(ids, model, "float32", posterior=True)

    async def embeddings(
        self,
        ids: Sequence[Any],
        *,
        model: str,
        codec: str,
        request_id: str,  # noqa: ARG002 (no log)
    ) -> Reply:
        """Round 2: embeddings from the model version with this hash, as they are after encoding and decoding."""
        self._description.check_codec(codec)
        return await self._ask(ids, model, codec, posterior=False)

    async def _ask(self, ids: Sequence[Any], model: str, codec: str, *, posterior: bool) -> Reply:
        self._description.model(model)
        version = self._versions[model]
        try:
            texts = id_texts(ids)
            values, missing = await asyncio.to_thread(version.answer, texts, posterior=posterior)
        except InputError as error:
            raise PartyRefusedError(self.name, str(error)) from error
        except Exception as error:
            kind = PartyUnavailableError if is_temporary(error) else PartyRefusedError
            raise kind(self.name, f"its model failed ({type(error).__name__}: {error})") from error
        shape = (len(texts), version.width(posterior=posterior))
        sent = encode(values, codec)
        received = decode(sent, len(values), shape[1], codec)
        return Reply.checked(self.name, received, shape, len(sent), posterior=posterior, missing=missing.tolist())

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def connect_in_process(name: str, address: str, tls: CertificateFiles | None) -> InProcessConnection:  # noqa: ARG001
    """Create the party by a factory: ``in-process://package.module:make_party``."""
    from gainroute.federation.party.settings import SourceSettings
    from gainroute.federation.party.sources import open_source

    versions = open_source(SourceSettings(factory=address), name).scan()
    if not versions:
        raise SettingError(f"party {name!r}: {address!r} gave no usable party; the log above says why")
    return InProcessConnection(name, versions.values())
