"""What is to be formed: parties, labels, shares, models and messages. Written as ``federation.toml``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gainroute._util.settings import load_settings
from gainroute.errors import SettingError
from gainroute.federation.pki.certificates import CertificateFiles
from gainroute.routing.payload import check_codec
from gainroute.training.label_privacy import keep_probability
from gainroute.training.settings import RouteSettings, default_route_settings

__all__ = ["FederationSettings", "FormationPlan", "LabelSettings", "PartyAddress", "load_federation_settings"]

PREFIX = "GAINROUTE_FEDERATION_"
NAME = re.compile("[a-z0-9][a-z0-9._-]{0,63}")
# Epochs of the strong route where fewer training labels than this share are true; see docs/results/privacy.md.
FEW_EPOCHS, FEW_WRONG = 5, 0.97


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Who holds the labels, and who sees them.

    Attributes
    ----------
    holder
        Name of the party whose settings name a file of labels.
    access
        "shared": every party has labels of its own. "handed-out": the holder gives the training labels to all.
        "private": the training labels that leave the holder are randomised.
    epsilon
        With "private": ε of K-ary randomised response.
    """

    holder: str
    access: Literal["shared", "handed-out", "private"] = "handed-out"
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if (self.access == "private") != (self.epsilon is not None):
            raise SettingError(
                f"labels: access is {self.access!r} and epsilon {self.epsilon}; epsilon belongs to access = 'private'"
            )
        if self.epsilon is not None and not 0 < self.epsilon <= 50:
            raise SettingError(f"labels: epsilon is {self.epsilon}; a number above 0 and up to 50 is needed, such as 3")


@dataclass(frozen=True, kw_only=True)
class FormationPlan:
    """How the models are trained and the router is calibrated; every party receives it.

    Attributes
    ----------
    seed
        Of splits and training.
    test, calibration
        Share of all samples held out for the test, and share of the rest that calibrates the router.
    budget, codec
        Of the router: the share of samples that may be escalated, and how embeddings are sent in service.
    epochs, local_epochs
        Of the strong route and of the local classifiers; as in `gainroute train` by default. With private labels of
        which more than 3 % are wrong, 5 for the strong route.
    exchange
        "gradients": encoders and head are trained together, embeddings go up and gradients come down in every step.
        "embeddings": every party trains its encoder alone, and embeddings are sent once.
    messages
        Codec of embeddings and gradients in training.
    pooled_only
        Whether the router is for a masked Round 1, which shows the coordinator the pooled posterior only.
    threads
        Threads that torch computes with at every party and at the coordinator.
    settings
        Everything about the models and their training, in place of the defaults of `gainroute train`.
    """

    seed: int = 0
    test: float = 0.3
    calibration: float = 0.2
    budget: float = 0.2
    codec: str = "float32"
    epochs: int | None = None
    local_epochs: int | None = None
    exchange: Literal["gradients", "embeddings"] = "gradients"
    messages: str = "float32"
    pooled_only: bool | None = None  # None is not sent, so that parties of an earlier version understand the plan
    threads: int = 1
    settings: RouteSettings | None = None

    def __post_init__(self) -> None:
        for name in ("codec", "messages"):
            check_codec(getattr(self, name))
        for name in ("test", "calibration", "budget"):
            if not 0 < getattr(self, name) < 1:
                raise SettingError(f"training: {name} is {getattr(self, name)}; a share between 0 and 1 is needed")
        if self.threads < 1 or self.seed < 0:
            raise SettingError(f"training: threads is {self.threads}, seed {self.seed}; at least 1 and 0 are needed")

    def route_settings(self, samples: int, classes: int, epsilon: float | None) -> RouteSettings:
        """The settings, by default those of `gainroute train` for that many training samples.

        Labels that were randomised with `epsilon` are corrected for in every loss, and the strong route is trained for
        fewer epochs by default: later ones learn the wrong labels by heart.
        """
        kept = 1.0 if epsilon is None else keep_probability(classes, epsilon)
        epochs = FEW_EPOCHS if self.epochs is None and kept < FEW_WRONG else self.epochs
        chosen = self.settings or default_route_settings(samples, epochs, self.local_epochs)
        return chosen if epsilon is None else chosen.with_label_kept(kept)


@dataclass(frozen=True, kw_only=True)
class PartyAddress:
    """A party, in the order of the fusion head."""

    name: str
    address: str


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Everything the coordinator needs to form a federation. Relative paths start at the folder of the file.

    Attributes
    ----------
    name
        Name of the federation: the parties keep its alignment under this name.
    out
        Where the coordinator keeps its part: one run folder per version.
    tls
        Certificate and key of the coordinator, and the authority it trusts.
    party
        The parties, two or more.
    labels, training
        See the classes.
    max_ids
        Most ids that a party may align.
    """

    name: str
    out: Path
    tls: CertificateFiles
    party: tuple[PartyAddress, ...]
    labels: LabelSettings
    training: FormationPlan = field(default_factory=FormationPlan)
    max_ids: int = 1_000_000

    def __post_init__(self) -> None:
        names = [party.name for party in self.party]
        if len(set(names)) < max(2, len(names)):
            raise SettingError(f"party: {', '.join(names) or 'none'}; two or more of different names are needed")
        if self.labels.holder not in names:
            raise SettingError(f"labels: holder is {self.labels.holder!r}; it must be one of {', '.join(names)}")
        if not NAME.fullmatch(self.name):
            raise SettingError(f"name is {self.name!r}; lower-case letters, digits, '.', '_' and '-' are allowed")


def load_federation_settings(
    path: str | os.PathLike[str], environment: Mapping[str, str] | None = None
) -> FederationSettings:
    """Read ``federation.toml``, overridden by environment variables ``GAINROUTE_FEDERATION_…``."""
    example = "deploy/federation.example.toml"
    return load_settings(FederationSettings, path, prefix=PREFIX, environment=environment, example=example)
