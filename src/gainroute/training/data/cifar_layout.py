"""The official files of CIFAR-10 and CIFAR-100: names, sizes, checksums, classes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LAYOUTS", "CifarFiles", "CifarLayout"]


@dataclass(frozen=True)
class CifarFiles:
    """The files of one official form of a data set."""

    archive: str  # the file to download
    archive_md5: str
    folder: str  # what the archive unpacks to
    train: dict[str, str]  # file names with their checksums, in official order
    test: dict[str, str]
    algorithm: str  # of these checksums


@dataclass(frozen=True)
class CifarLayout:
    """A data set in its binary and its python form."""

    binary: CifarFiles
    python: CifarFiles
    label_bytes: int  # labels before each image in the binary form; the last is the class
    label_key: bytes  # of the class in the python form
    class_names: tuple[str, ...]  # in the order of the labels


_URL = "https://www.cs.toronto.edu/~kriz/"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

LAYOUTS = {
    "cifar10": CifarLayout(
        CifarFiles(
            _URL + "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-batches-bin",
            {
                "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
                "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
            },
            {"test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c"},
            "sha1",
        ),
        CifarFiles(
            _URL + "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            {"test_batch": "40351d587109b95175f43aff81a1287e"},
            "md5",
        ),
        1,
        b"labels",
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": CifarLayout(
        CifarFiles(
            _URL + "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary",
            {"train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"},
            {"test.bin": "8fb6623e830365ff53cf14adec797474f5478006"},
            "sha1",
        ),
        CifarFiles(
            _URL + "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
            {"train": "16019d7e3df5f24257cddd939b257f8d"},
            {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            "md5",
        ),
        2,
        b"fine_labels",
        tuple(_CIFAR100.split()),
    ),
}
