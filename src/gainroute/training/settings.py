"""Settings of training. No torch: a config is read without it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gainroute.errors import SettingError

__all__ = [
    "DeferSettings",
    "FitSettings",
    "LocalSettings",
    "MaskedSettings",
    "RouteSettings",
    "VflSettings",
    "default_route_settings",
]


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How a model is optimised: AdamW, one cycle of the learning rate, a fixed number of epochs; the last one is used.

    Attributes
    ----------
    epochs, batch
        Passes over the training part, and samples per step.
    rate
        The peak of the learning rate.
    weight_decay, label_smoothing
        As in torch.
    augment
        Whether the views are altered, differently in each epoch.
    label_kept
        Probability that a training label is the true one; below 1 after randomised response.
    """

    epochs: int
    batch: int = 128
    rate: float = 1e-3
    weight_decay: float = 1e-2
    label_smoothing: float = 0.0
    augment: bool = False
    label_kept: float = 1.0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise SettingError(f"epochs is {self.epochs}; at least 1 epoch is needed: leave it out for the default")
        if self.batch < 2:
            raise SettingError(f"batch is {self.batch}; at least 2 samples per step are needed")
        if not self.rate > 0 or self.weight_decay < 0:
            raise SettingError(f"rate {self.rate}, weight_decay {self.weight_decay}: above 0, and 0 or more")
        if not 0 <= self.label_smoothing < 1:
            raise SettingError(f"label_smoothing is {self.label_smoothing}: 0 or more, below 1")


@dataclass(frozen=True, kw_only=True)
class LocalSettings(FitSettings):
    """Round 1: the light classifier.

    Attributes
    ----------
    widths, hidden
        Its channels on images, and its layers on feature vectors.
    smallest
        Width and height in pixels at which its blocks stop striding.
    dropout
        Share of the last layer's inputs dropped during training.
    holdout
        Share of the training samples that no step uses; the epoch with the smallest loss on them is used. 0 trains on
        all samples and uses the last epoch.
    """

    widths: tuple[int, ...] = (8, 16, 32, 32)
    hidden: tuple[int, ...] = (16,)
    smallest: int = 2
    dropout: float = 0.1
    holdout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.holdout <= 0.5:
            raise SettingError(f"holdout is {self.holdout}; 0 (no early stopping) to 0.5, such as 0.1")


@dataclass(frozen=True, kw_only=True)
class VflSettings(FitSettings):
    """Round 2: encoders and fusion head.

    Attributes
    ----------
    width, stem
        Of the ResNet-18 at each party; its embedding has 8 × width values. The stem "auto" depends on the image size.
    norm
        Its normalisation: "batch", or "group", which holds up to noise that training did not see but learns slowly.
    smooth
        Whether it smooths images by a fixed filter first, which also holds up to noise.
    latent, dropout
        Of the fusion head.
    auxiliary
        Weight of a classification loss at every encoder, averaged over the parties; 0 for none.
    """

    width: int = 64
    stem: str = "3x3"
    norm: str = "batch"
    smooth: bool = False
    latent: int = 256
    dropout: float = 0.1
    auxiliary: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MaskedSettings(FitSettings):
    """The masked head, trained with random subsets of parties on embeddings of the frozen encoders."""


@dataclass(frozen=True, kw_only=True)
class DeferSettings:
    """Learning to defer; optimised like the local classifiers.

    Attributes
    ----------
    alphas
        The weights α of the classification term.
    epochs
        If not 0, instead of those of the local classifiers: with a second term in the loss they may need more.
    crossfit_seeds
        Seeds for which each α is also trained with the expert's correctness cross-fitted in two folds.
    """

    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0)
    epochs: int = 0
    crossfit_seeds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RouteSettings:
    """Everything that determines how both routes are trained."""

    local: LocalSettings
    vfl: VflSettings
    masked: MaskedSettings
    defer: DeferSettings = field(default_factory=DeferSettings)

    def with_label_kept(self, kept: float) -> RouteSettings:
        """The same settings for labels of which randomised response has kept this share."""
        parts = {name: replace(getattr(self, name), label_kept=kept) for name in ("local", "vfl", "masked")}
        return replace(self, **parts)


def default_route_settings(
    samples: int = 1024, epochs: int | None = None, local_epochs: int | None = None
) -> RouteSettings:
    """Settings for data nobody has tuned for: small models, the stem by image size.

    Parameters
    ----------
    samples
        How many there are to train on. Few samples are split into small batches, because after epochs of one step
        batch normalisation would have no running means to answer by.
    epochs, local_epochs
        Of the strong route (20) and of the local classifiers (20, of which a tenth of the samples chooses one).
    """
    batch = min(64, max(8, samples // 16))
    strong, local = 20 if epochs is None else epochs, 20 if local_epochs is None else local_epochs
    hidden = min(128, max(32, samples // 8))  # chosen on validation slices, see docs/train_and_serve.md
    return RouteSettings(
        local=LocalSettings(
            epochs=local, batch=min(128, max(8, samples // 16)), rate=5e-3, hidden=(hidden,), holdout=0.1
        ),
        vfl=VflSettings(epochs=strong, batch=batch, rate=2e-3, width=16, stem="auto", latent=128, auxiliary=0.5),
        masked=MaskedSettings(epochs=min(10, strong), batch=batch, rate=2e-3),
        defer=DeferSettings(alphas=(1.0,)),
    )
