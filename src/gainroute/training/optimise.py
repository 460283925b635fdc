"""What all training loops share: seeds, batches, the learning rate, and the optimiser step."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gainroute.errors import SettingError
from gainroute.routing.types import IntArray
from gainroute.training.settings import FitSettings

__all__ = [
    "Stepper",
    "batches",
    "check_device",
    "choose_threads",
    "derive",
    "label_loss",
    "one_cycle",
    "seeded",
    "steps_in",
    "threads",
]

_SMALL_VIEW = 1024  # values per sample


def derive(*keys: int | str) -> int:
    """A seed for one purpose, derived from the seed of the run and the names of the purpose."""
    digest = hashlib.sha256("\0".join(str(key) for key in keys).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def check_device(name: str) -> str:
    """Return the name of a torch device that this machine has; raises SettingError for any other."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        has = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        reason = str(error).splitlines()[0]
        raise SettingError(
            f"device is {name!r}, which torch {torch.__version__} cannot use here ({reason}); available: "
            f"{', '.join(has)}: use --device cpu, or install a build of torch for your hardware"
        ) from error
    return name


@contextmanager
def seeded(*keys: int | str) -> Iterator[None]:
    """Derive torch's random state from `keys` inside the block, and restore it afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(*keys))
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block; 0 leaves the number unchanged."""
    before = torch.get_num_threads()
    try:
        if count:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def choose_threads(values: int) -> int:
    """Number of threads to train with, for a largest view of `values` numbers per sample; 0 leaves torch's choice.

    On small views torch's threads spend their time waiting for each other: one thread takes a fraction of the CPU time.
    A number that the user set for OpenMP is kept.

    Examples
    --------
    >>> choose_threads(16), choose_threads(3 * 64 * 64)
    (1, 0)
    """
    return 0 if values > _SMALL_VIEW or os.environ.get("OMP_NUM_THREADS") else 1


def batches(count: int, size: int, seed: int) -> Iterator[IntArray]:
    """Rows in random order, `size` at a time; a remainder is dropped unless it is the only batch.

    A remainder of one sample would have no variance for batch normalisation.
    """
    order = np.random.default_rng(seed).permutation(count).astype(np.int64)
    size = min(size, count)
    for first in range(0, count - size + 1, size):
        yield order[first : first + size]


def steps_in(count: int, fit: FitSettings) -> int:
    """Number of steps that `fit` takes on `count` samples."""
    return fit.epochs * max(1, count // min(fit.batch, count))


def one_cycle(step: int, total: int, peak: float) -> float:
    """The learning rate of a step: rises from peak / 25 over the first 30 %, then falls to almost 0, by cosines."""
    rise = max(1, round(0.3 * total))
    if step < rise:
        start, end, share = peak / 25, peak, step / rise
    else:
        start, end, share = peak, peak / 25e4, (step - rise) / max(1, total - rise)
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def label_loss(logits: Tensor, target: Tensor, fit: FitSettings) -> Tensor:
    """Cross-entropy, with label smoothing; corrected for the known noise if labels were randomised.

    A label that randomised response keeps with probability c is the class k with probability
    (1 − c) / (K − 1) + (c − (1 − c) / (K − 1)) · p[k]: the likelihood of that is what training maximises.
    """
    if fit.label_kept == 1.0:
        return functional.cross_entropy(logits, target, label_smoothing=fit.label_smoothing)
    other = (1 - fit.label_kept) / (logits.shape[1] - 1)
    seen = (other + (fit.label_kept - other) * logits.softmax(dim=1)).log()
    smooth = fit.label_smoothing
    return (1 - smooth) * functional.nll_loss(seen, target) - smooth * seen.mean()


class Stepper:
    """AdamW with the one-cycle learning rate; its state is saved in a checkpoint as plain tensors."""

    def __init__(self, models: Iterable[nn.Module], fit: FitSettings, total: int) -> None:
        parameters = [p for model in models for p in model.parameters()]
        self._parameters = parameters
        self._peak = fit.rate
        self._total = total
        self._count = 0
        self._optimiser = torch.optim.AdamW(parameters, lr=fit.rate, weight_decay=fit.weight_decay, fused=True)

    def step(self) -> None:
        """Apply the accumulated gradients, and clear them."""
        for group in self._optimiser.param_groups:
            group["lr"] = one_cycle(self._count, self._total, self._peak)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._count += 1

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs."""
        tensors = {"count": torch.tensor(self._count)}
        for index, parameter in enumerate(self._parameters):
            for name, value in self._optimiser.state[parameter].items():
                tensors[f"{index}.{name}"] = value
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._count = int(tensors["count"])
        for index, parameter in enumerate(self._parameters):
            prefix = f"{index}."
            found = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            # AdamW keeps its step counter on the CPU. The moments take the device and memory layout of the
            # parameter, because another layout may round differently.
            self._optimiser.state[parameter] = {
                key: value if key == "step" else torch.empty_like(parameter).copy_(value)
                for key, value in found.items()
            }
