"""The loop around every stage: resume, one seeded epoch after the other, a checkpoint after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gainroute._util.progress import Progress
from gainroute.training.checkpoint import Checkpoint, CheckpointState, Stateful, gather, scatter
from gainroute.training.optimise import seeded

__all__ = ["run_epochs"]


def run_epochs(
    epoch: Callable[[int], float],
    epochs: int,
    parts: Mapping[str, Stateful],
    *,
    name: str,
    seed: int,
    checkpoint: Checkpoint,
    progress: Progress,
) -> None:
    """Run the epochs that are still to be run.

    Parameters
    ----------
    epoch
        Runs the epoch of that number and returns its mean loss.
    epochs
        How many there are in all.
    parts
        Everything that an epoch changes.
    name
        Of the stage, for the progress bar and the seed of an epoch.
    seed
        Of the run.
    checkpoint, progress
        Where the state is kept, and who is told.
    """
    done, seconds = 0, 0.0
    saved = checkpoint.load()
    if saved is not None:
        done, seconds = saved.epochs, saved.seconds
        scatter(parts, saved.tensors)
    if done < epochs:
        progress.start(name, epochs, done)
    for number in range(done, epochs):
        began = time.perf_counter()
        # Every epoch draws from a seed of its own: no random state has to be kept.
        with seeded(seed, name, number):
            loss = epoch(number)
        seconds += time.perf_counter() - began
        checkpoint.save(CheckpointState(number + 1, seconds, gather(parts)))
        progress.advance(f"loss {loss:.3f}")
