"""Data: digits (embedded), ModelNet40 views, CIFAR quadrants, anybody's own views; splits and noise. No torch."""

from gainroute._util.progress import NoProgress, Progress, RichProgress
from gainroute.training.data.dataset import Augment, Dataset, Part
from gainroute.training.data.registry import load_dataset
from gainroute.training.data.settings import AugmentSettings, DataSettings

__all__ = [
    "Augment",
    "AugmentSettings",
    "DataSettings",
    "Dataset",
    "NoProgress",
    "Part",
    "Progress",
    "RichProgress",
    "load_dataset",
]
