"""Where the sets have their homes."""

from collections.abc import Mapping
from typing import NamedTuple

from fedjax_ht.data.sources.checksums import published


class File(NamedTuple):
    """url: where it is, its last part its name. md5: as published, and of what is in a .gz if that
    is. size: bytes."""

    url: str
    md5: str
    size: int
    content_md5: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class Source(NamedTuple):
    """about: what the set is, one line. files: which `load_dataset` reads, in a folder of the set's
    name."""

    about: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def _source(name: str, about: str, home: str, sizes: Mapping[str, int]) -> tuple[str, Source]:
    sums = [(published(name, file), published(name, file.removesuffix(".gz"))) for file in sizes]
    files = [
        File(home + file, md5, size, content if file.endswith(".gz") else None)
        for (file, size), (md5, content) in zip(sizes.items(), sums)
    ]
    return name, Source(about, tuple(files))


SOURCES: Mapping[str, Source] = dict(
    (
        _source(
            "mnist",
            "70,000 digits, 28x28 grey, 10 classes",
            # a mirror, which torchvision reads, too
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            {
                "train-images-idx3-ubyte.gz": 9_912_422,
                "train-labels-idx1-ubyte.gz": 28_881,
                "t10k-images-idx3-ubyte.gz": 1_648_877,
                "t10k-labels-idx1-ubyte.gz": 4_542,
            },
        ),
        _source(
            "fashion_mnist",
            "70,000 pieces of clothing, 28x28 grey, 10 classes",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            {
                "train-images-idx3-ubyte.gz": 26_421_880,
                "train-labels-idx1-ubyte.gz": 29_515,
                "t10k-images-idx3-ubyte.gz": 4_422_102,
                "t10k-labels-idx1-ubyte.gz": 5_148,
            },
        ),
        _source(
            "cifar10",
            "60,000 photographs, 32x32, 10 classes",
            "https://www.cs.toronto.edu/~kriz/",
            {"cifar-10-python.tar.gz": 170_498_071},
        ),
        _source(
            "cifar100",
            "60,000 photographs, 32x32, 100 classes",
            "https://www.cs.toronto.edu/~kriz/",
            {"cifar-100-python.tar.gz": 169_001_437},
        ),
        _source(
            "svhn",
            "99,289 house numbers, 32x32, 10 classes",
            "http://ufldl.stanford.edu/housenumbers/",
            {"train_32x32.mat": 182_040_794, "test_32x32.mat": 64_275_384},
        ),
        _source(
            "tiny_imagenet",
            "110,000 photographs, 64x64, 200 classes",
            "http://cs231n.stanford.edu/",
            {"tiny-imagenet-200.zip": 248_100_043},
        ),
        _source(
            "flowers102",
            "8,189 photographs of flowers, many sizes, 102 classes",
            "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
            {"102flowers.tgz": 344_862_509, "imagelabels.mat": 502, "setid.mat": 14_989},
        ),
        _source(
            "food101",
            "101,000 photographs of dishes, many sizes, 101 classes",
            "http://data.vision.ee.ethz.ch/cvl/",
            {"food-101.tar.gz": 4_996_278_331},
        ),
    )
)
"""Set -> where its files are: its own home. Sums as in `checksums`, sizes as the homes and other
loaders list them."""

ELSEWHERE = {
    "har_10persons": "it is part of the package, and nothing is to be downloaded",
    "har": "windows of motion sensors, 30 persons; no sums of it are published: download it by hand (UCI, set 240)",
    "pamap2": "windows of motion sensors, 9 persons; no sums of it are published: download it by hand (UCI, set 231)",
    "fashion_mnist_10k": "it is part of the package, and nothing is to be downloaded",
    "folder": "it is a folder of your own, and nothing is to be downloaded",
    "domains": "they are folders of your own, and nothing is to be downloaded",
    "camelyon17": "patches of lymph nodes of five hospitals, 96x96; download them from the page of WILDS",
    "csv": "it is a table of your own, and nothing is to be downloaded",
    "ag_news": "its authors' folder has no address that a program could ask; put its train.csv and test.csv into "
    "DIR/ag_news",
    "ag_news_test": "as for ag_news; test.csv alone serves",
    "shakespeare": "LEAF's preprocess.sh makes its files, and they have no address",
    "text": "it is a file of your own, and nothing is to be downloaded",
    "npz": "it is a file of your own, and nothing is to be downloaded",
    "client_folders": "PFLlib's and HtFLlib's generate_*.py scripts make these folders, and they have no address",
}
"""Names, and prefixes of names, that have no address: why."""
