"""Data sets: images, tables split by columns, feature views, and registered ones; splits and noise. No torch."""

from gainroute.training.data.dataset import Augment, Dataset, DatasetLoader, Part
from gainroute.training.data.registry import datasets, download_dataset, load_dataset
from gainroute.training.data.settings import AugmentSettings, DataSettings
from gainroute.training.data.splits import stratified_split

__all__ = [
    "Augment",
    "AugmentSettings",
    "DataSettings",
    "Dataset",
    "DatasetLoader",
    "Part",
    "datasets",
    "download_dataset",
    "load_dataset",
    "stratified_split",
]
