"""Whether a party fits the deployment: classes and their order, models, dimensions and codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gainroute.errors import GainrouteError
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.transport.base import PartyDescription

__all__ = ["check_fusion", "class_names", "differences", "dimension"]


def class_names(deployment: Deployment, descriptions: Mapping[str, PartyDescription]) -> tuple[str, ...]:
    """Names of the classes: the router's, else those of the parties, else the column numbers."""
    if deployment.class_names:
        return deployment.class_names
    k = deployment.router.n_classes_
    given = next((descriptions[name].classes for name in deployment.parties if name in descriptions), ())
    return given if len(given) == k else tuple(map(str, range(k)))


def dimension(deployment: Deployment, description: PartyDescription) -> int | None:
    """Length of a party's embeddings for the router's models; None if the party does not have these models."""
    wanted = deployment.model(description.name)
    return next((m.dimension for m in description.models if m.hash == wanted), None)


def differences(deployment: Deployment, name: str, description: PartyDescription, classes: Sequence[str]) -> list[str]:
    """List what keeps a party from answering for a deployment; `classes` are the names it must have, in this order."""
    found: list[str] = []
    if description.name != name:
        return [f"it calls itself {description.name!r}, the route table says {name!r}"]
    if list(description.classes) != list(classes):
        same = sorted(description.classes) == sorted(classes)
        kind = "are in another order" if same else "differ"
        found.append(f"its classes {kind}: {_some(description.classes)}, {_some(classes)} is needed")
    length = dimension(deployment, description)
    if length is None:
        has = ", ".join(m.hash for m in description.models) or "none"
        wanted = deployment.model(name)
        found.append(f"it does not have the models {wanted}; it has {has}: add that version at the party")
    elif length < 1:
        found.append(f"its embeddings have length {length}; 1 or more is needed")
    if deployment.fusion.wants_embeddings and deployment.codec not in description.codecs:
        has = ", ".join(description.codecs) or "none"
        found.append(f"it does not offer the codec {deployment.codec!r}; it offers {has}")
    return found


def check_fusion(deployment: Deployment, lengths: Sequence[int]) -> None:
    """Fuse random embeddings of the parties' dimensions, so that a wrong fusion fails now and not in Round 2."""
    fusion, k = deployment.fusion, deployment.router.n_classes_
    if not fusion.wants_embeddings:
        return
    rng = np.random.default_rng(0)
    probe = [rng.normal(size=(2, n)).astype(np.float32) for n in lengths]
    try:
        given = np.asarray(fusion.fuse(probe))
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
