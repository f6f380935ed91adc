"""The image set that comes inside the package, so that examples and tests run without a download."""

from pathlib import Path

from fedjax_ht.data.arrays import opened_npz
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.sources.idx import FASHION_CLASSES
from fedjax_ht.data.sources.images import resize

_FILE = Path(__file__).parents[1] / "embedded" / "fashion_mnist_10k.npz"


def read_embedded(data_dir: Path | None, image_size: int | None) -> Dataset:
    """The 10,000 test images of Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, MIT licence), 28x28x1.

    It has no official sets, since all of it is one; `data_dir` is not looked at.
    """
    with opened_npz(_FILE) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return Dataset("fashion_mnist_10k", resize(images, image_size), labels, FASHION_CLASSES)
