"""The sets that come inside the package, so that examples and tests run without a download."""

from pathlib import Path

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files.arrays import opened_npz
from fedjax_ht.data.sources.as_stored import refuse_image_size
from fedjax_ht.data.sources.har import CLASSES
from fedjax_ht.data.sources.idx import FASHION_CLASSES
from fedjax_ht.data.sources.images import resize

_FOLDER = Path(__file__).parents[1] / "embedded"


def read_embedded(data_dir: Path | None, image_size: int | None) -> Dataset:
    """The 10,000 test images of Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, MIT licence),
    28x28x1.

    It has no official sets, since all of it is one; `data_dir` is not looked at.
    """
    with opened_npz(_FOLDER / "fashion_mnist_10k.npz") as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return Dataset("fashion_mnist_10k", resize(images, image_size), labels, FASHION_CLASSES)


def read_har_10persons(data_dir: Path | None, image_size: int | None) -> Dataset:
    """1,039 windows of persons 1 to 10 of UCI HAR (Anguita et al. 2013, CC BY 4.0), about a third
    of theirs, as of set "har" but float16 [128, 9]; groups are the persons.

    It has no official sets; partition "natural" splits each person's own. LICENSE-har_10persons.txt
    says how it was selected, and what about it is not quite sure. `data_dir` is not looked at.
    """
    refuse_image_size(image_size, "har_10persons")
    with opened_npz(_FOLDER / "har_10persons.npz") as arrays:
        windows, labels, persons = arrays["windows"], arrays["labels"], arrays["persons"]
    return Dataset("har_10persons", windows, labels, CLASSES, groups=persons)
