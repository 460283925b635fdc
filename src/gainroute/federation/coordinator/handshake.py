"""Does a party fit the router? Classes and their order, models, dimensions and codec, or a list of what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.deployment import Version
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.transport.base import PartyDescription

__all__ = ["check_fusion", "class_names", "differences", "dimension"]


def class_names(version: Version, descriptions: Mapping[str, PartyDescription]) -> tuple[str, ...]:
    """Names of the classes: the router's, else those that the parties tell, else the column numbers."""
    if version.router.classes is not None:
        return tuple(str(c) for c in version.router.classes.tolist())
    told = next((descriptions[name].classes for name in version.parties if name in descriptions), ())
    return told if len(told) == version.router.n_classes_ else tuple(map(str, range(version.router.n_classes_)))


def dimension(version: Version, description: PartyDescription) -> int | None:
    """Length of a party's embeddings by the model that the router fixes; None if it does not have that model."""
    wanted = version.model(description.name)
    return next((m.dimension for m in description.models if m.hash == wanted), None)


def differences(version: Version, name: str, description: PartyDescription, classes: Sequence[str]) -> list[str]:
    """What keeps a party from answering for this version.

    Parameters
    ----------
    version
        What it would have to answer for.
    name
        Of the party in the route table.
    description
        What it says of itself.
    classes
        What its classes have to be, in this order.
    """
    found: list[str] = []
    if description.name != name:
        return [f"it calls itself {description.name!r}, the route table says {name!r}"]
    if list(description.classes) != list(classes):
        if sorted(description.classes) == sorted(classes):
            found.append(
                f"its classes stand in another order: {_some(description.classes)}, {_some(classes)} is needed"
            )
        else:
            found.append(f"its classes are {_some(description.classes)}, {_some(classes)} is needed")
    wanted = version.model(name)
    length = dimension(version, description)
    if length is None:
        has = ", ".join(m.hash for m in description.models) or "none"
        found.append(f"it does not have the models {wanted}; it has {has}: add that version at the party")
    elif length < 1:
        found.append(f"its embeddings have length {length}; 1 or more is needed")
    if version.fusion.wants_embeddings and version.codec not in description.codecs:
        found.append(
            f"it does not send the codec {version.codec!r}; it sends {', '.join(description.codecs) or 'none'}"
        )
    return found


def check_fusion(version: Version, lengths: Sequence[int]) -> None:
    """Fuse made-up embeddings of the parties' dimensions: a fusion for others says so now, not in Round 2."""
    fuse = version.fusion.fuse
    if fuse is None:
        return
    rng = np.random.default_rng(0)
    probe = [rng.normal(size=(2, n)).astype(np.float32) for n in lengths]
    try:
        given = np.asarray(fuse(probe))
    except (GainrouteError, RuntimeError, ValueError, TypeError, IndexError) as error:
        raise HandshakeError(
            f"the fusion {version.fusion.source} does not take embeddings of lengths {list(lengths)} ({error}); these "
            f"are what the parties {list(version.parties)} send: the order of the route table, or the fusion, is wrong"
        ) from error
    k = version.router.n_classes_
    if given.shape not in {(2, k), (2,)}:
        raise HandshakeError(
            f"the fusion {version.fusion.source} answers two samples with shape {given.shape}; (2, {k}) posteriors or "
            "(2,) predictions are needed"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return f"[{shown}]" if len(names) <= 12 else f"[{shown}, … {len(names)} in all]"
