"""Sets of photographs as their publishers give them.

SVHN (Netzer et al. 2011), Flowers-102 (Nilsback and Zisserman 2008), Food-101 (Bossard et al.
2014), Tiny ImageNet (Stanford CS231n) and Camelyon17 as WILDS publishes it (Bandi et al. 2018, Koh
et al. 2021).
"""

import io
import re
import struct
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.check.packages import needing
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.images import decode_members
from fedjax_ht.lab.readers.source import (
    CIFAR100_MOMENTS,
    IMAGENET_MOMENTS,
    Moments,
    Raw,
    ReadOptions,
    Source,
    one_after_another,
)
from fedjax_ht.lab.readers.table_files import table_with_head
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, read_whole, reading, take

_SIZE = 64  # pixels, of sets of many sizes

# Archives of images with text files that list them


class _Listed(NamedTuple):
    """The images of a set in order.

    Attributes:
      keys: keys of the images, see `images.decode_members`.
      classes: the class of each image.
      counts: name of an official set, and its number of images; the sets follow each other.
    """

    keys: list[str]
    classes: list[str]
    counts: list[tuple[str, int]]


def _archive(
    pattern: re.Pattern,
    listed: Callable[[Collection[str], dict[str, str]], _Listed],
    **published: Any,
) -> Source:
    """Declares a set that is one archive or its extracted folder; classes are sorted by name.

    Args:
      pattern: the pattern of `images.decode_members`.
      listed: a function (keys of all images, text files) -> `_Listed`.
      **published: other fields of the `Source`.
    """

    def read(source: Path, options: ReadOptions) -> Raw:
        pile, texts = decode_members(source, pattern, options.image_size, options.target)
        keys, of_images, counts = listed(pile.places, texts)
        classes = sorted(set(of_images))
        return Raw(
            pile.stack(keys),
            np.searchsorted(classes, of_images),
            tuple(classes),
            official=one_after_another(counts),
            reading=Reading(path=str(source)),
        )

    return Source(read=read, is_kept=True, **published)


def _food101(images: Collection[str], texts: dict[str, str]) -> _Listed:
    del images
    lists = take(texts, ("meta/train.txt", "meta/test.txt"), "files")
    train, test = (text.split() for text in lists)
    keys = train + test  # such as apple_pie/1005649
    counts = [("train", len(train)), ("test", len(test))]
    return _Listed(keys, [key.split("/")[0] for key in keys], counts)


FOOD101 = _archive(
    re.compile(
        r"(?:^|/)(?:images/(?P<image>[^/]+/[^/.][^/]*)\.jpg|(?P<text>meta/(?:train|test)\.txt))$"
    ),
    _food101,
    name="food101",
    origins=(
        Origin(
            "food-101.tar.gz or its extracted folder, with images/, meta/train.txt and "
            "meta/test.txt",
            "download it from the dataset's page (ETH Zurich, Food-101)",
            names=("food-101", "food-101.tar.gz", "food-101.tar"),
            markers=("meta/train.txt",),
        ),
    ),
    size=_SIZE,
    about="101,000 photographs of dishes, many sizes, 101 classes",
    home="http://data.vision.ee.ethz.ch/cvl/",
    files={"food-101.tar.gz": 4_996_278_331},
    md5={"food-101.tar.gz": "85eeb15f3717b99a5da872d97d918f87"},
    moments=CIFAR100_MOMENTS,  # as in DFRD's released code
)


def _tiny_imagenet(images: Collection[str], texts: dict[str, str]) -> _Listed:
    """The set "test" is the publisher's labelled validation set: labels of its test set are
    secret."""
    (annotations,) = take(texts, ("val/val_annotations.txt",), "files")
    keys = sorted(key for key in images if key.startswith("train/"))
    wnids, train = [key.split("/")[1] for key in keys], len(keys)
    for line in annotations.splitlines():  # file, class, bounding box
        file, wnid = line.split("\t")[:2]
        keys.append(f"val/images/{file}")
        wnids.append(wnid)
    if unknown := set(wnids[train:]) - set(wnids[:train]):
        raise ValueError(
            f"{len(unknown)} classes of val_annotations.txt have no training images, "
            f"such as {min(unknown)}"
        )
    return _Listed(keys, wnids, [("train", train), ("test", len(keys) - train)])


TINY_IMAGENET = _archive(
    re.compile(
        r"(?:^|/)(?:(?P<image>(?:train/n\d+|val)/images/[^/.][^/]*\.JPEG)"
        r"|(?P<text>val/val_annotations\.txt))$"
    ),
    _tiny_imagenet,
    name="tiny_imagenet",
    origins=(
        Origin(
            "tiny-imagenet-200.zip or its extracted folder, with train/ and "
            "val/val_annotations.txt",
            "download it from the dataset's page (Stanford CS231n, Tiny ImageNet)",
            names=("tiny-imagenet-200", "tiny-imagenet-200.zip"),
            markers=("val/val_annotations.txt",),
        ),
    ),
    about="110,000 photographs, 64x64, 200 classes",
    home="http://cs231n.stanford.edu/",
    files={"tiny-imagenet-200.zip": 248_100_043},
    md5={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    moments=IMAGENET_MOMENTS,
)


# Camelyon17

_TISSUES = ("normal", "tumor")
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
_CAMELYON17 = tuple(
    Origin(
        "the folder camelyon17_v1.0, with metadata.csv and patches/patient_P_node_N/*.png",
        "download it from the dataset's page (WILDS, Camelyon17-wilds)",
        fetched=False,
        names=(name,),
        folders=("camelyon17", "camelyon17_v1.0", "camelyon17/camelyon17_v1.0", ""),
    )
    for name in ("metadata.csv", "patches")
)
_PATCH = re.compile(
    r"^(?P<image>patient_\w+_node_\w+/patch_patient_\w+_node_\w+_x_\w+_y_\w+\.png)$"
)
_VAL, _TEST = 1, 2  # hospitals, of which nothing trains


def read_camelyon17(table: Path, patches: Path, options: ReadOptions) -> Raw:
    """455,954 patches of 96x96x3 by the publisher's table, normal or tumor in the central 32x32.

    `Dataset.groups` are the hospitals, 0 to 4. Official sets are those of WILDS: "val" and "test"
    are all patches of hospitals 1 and 2, "train" and "id_val" those of the other three, by the
    column split (0 and 1).
    """
    keys, values = _patches(table)
    labels, hospitals, splits = np.array(values).T
    pile, _ = decode_members(patches, _PATCH, options.image_size, options.target)
    official = _wilds_sets(hospitals, splits)
    return Raw(
        pile.stack(keys),
        labels,
        _TISSUES,
        official=official,
        groups=hospitals,
        reading=Reading(path=str(table.parent)),
    )


def _patches(table: Path) -> tuple[list[str], list[list[int]]]:
    """File, and (class, hospital, split), of each patch in metadata.csv."""
    data = table_with_head(table)
    if missing := [name for name in _COLUMNS if name not in data.column_names]:
        raise ValueError(f"metadata.csv has no column {', '.join(missing)}")
    keys, values = [], []
    for i, cells in enumerate(zip(*(data[name].to_pylist() for name in _COLUMNS))):
        # the cells become a path, so they are words
        if not all(map(_WORD.fullmatch, cells)) or not all(map(_DIGIT.fullmatch, cells[4:])):
            raise ValueError(f"row {i + 1} of metadata.csv is {short(cells)}")
        patient, node, x, y = cells[:4]
        name = f"patient_{patient}_node_{node}"
        keys.append(f"{name}/patch_{name}_x_{x}_y_{y}.png")
        values.append(list(map(int, cells[4:])))
    if not keys:
        raise ValueError("metadata.csv has no rows")
    return keys, values


_WORD, _DIGIT = re.compile(r"\w{1,20}"), re.compile(r"[0-9]")


def _wilds_sets(hospitals: Sequence[int], splits: Sequence[int]) -> dict[str, np.ndarray]:
    """Official sets, as WILDS reads the table."""
    seen = (hospitals != _VAL) & (hospitals != _TEST)
    sets = {"train": seen & (splits == 0), "id_val": seen & (splits == 1)}
    sets |= {"val": hospitals == _VAL, "test": hospitals == _TEST}
    return dict(zip(sets, map(np.flatnonzero, sets.values())))


CAMELYON17 = Source(
    name="camelyon17",
    about="patches of lymph nodes of five hospitals, 96x96; download them from the page of WILDS",
    read=read_camelyon17,
    origins=_CAMELYON17,
    is_kept=True,
)

# MATLAB files

# bytes, and the type of an element; see MathWorks' MAT-File Format
_MAT_HEADER, _MAT_COMPRESSED = 128, 15
_MAT_NUMBERS = {f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)}
_MAT_NUMBERS |= {"double", "single"}


def load_mat(name: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of numbers of a MATLAB 5 file.

    Raises:
      ImportError: scipy is not installed.
      ValueError: the file is damaged, holds anything but arrays of numbers, or too much of them.
    """
    with needing(f"{name}: reading .mat files"):
        from scipy.io import loadmat, whosmat
    content = bytes(read_whole(path))
    _check_elements(content)
    try:
        # arrays in arrays could be as deep as a file likes
        kinds = {kind for _, _, kind in whosmat(io.BytesIO(content))}
        if not kinds <= _MAT_NUMBERS:
            raise ValueError("an array of something else than numbers")
        return loadmat(io.BytesIO(content))
    except Exception as error:  # scipy raises nearly anything on a damaged file
        raise ValueError(f"damaged .mat file ({error})") from error


def _check_elements(content: bytes) -> None:
    """Refuses a file that inflates to too much, or whose sums are wrong; scipy would not see it."""
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(content[124:_MAT_HEADER])
    if order is None:
        raise ValueError("not a MATLAB 5 file")
    position, inflated, limit = _MAT_HEADER, 0, limits.decompressed(len(content)) + 1
    while position < len(content):
        if len(content) < position + 8:
            raise ValueError("it ends too early")
        kind, count = struct.unpack_from(f"{order}2I", content, position)
        position += 8 + count
        if position > len(content):
            raise ValueError("it ends too early")
        if kind == _MAT_COMPRESSED:
            stream = zlib.decompressobj()
            inflated += len(stream.decompress(content[position - count : position], limit))
            limits.keep("decompressed, it", inflated, limit - 1)
            if not stream.eof or stream.unused_data:
                raise ValueError("a compressed array is longer or shorter than it says")


_SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
_SVHN = tuple(
    Origin(
        " and ".join(_SVHN_FILES),
        "download it from the dataset's page (Netzer et al., SVHN format 2, cropped digits)",
        names=(file,),
        folders=("svhn", "SVHN", ""),
    )
    for file in _SVHN_FILES
)


def read_svhn(*files: Path, options: ReadOptions) -> Raw:
    """Official sets train and test, 32x32x3; the publisher's label 10, or 0, is the digit 0."""
    images, labels = zip(*map(_svhn_split, files))
    return Raw(
        np.ascontiguousarray(np.concatenate(images)),
        np.concatenate(labels),
        tuple("0123456789"),
        official=one_after_another(zip(("train", "test"), map(len, labels))),
        reading=Reading(path=str(files[0].parent)),
    )


def _svhn_split(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    with reading(path, _SVHN[0]):
        images, labels = take(load_mat("svhn", path), ("X", "y"), "arrays")
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, labels.size):
            raise ValueError(
                f"X is {images.dtype} {images.shape} for {labels.size} labels, "
                "not uint8 [32, 32, 3, n]"
            )
        unknown = labels[~np.isin(labels, np.arange(11))]
        if unknown.size:
            rule = "labels are whole numbers from 1 to 10, and 10 is the digit 0"
            raise ValueError(f"y has the label {unknown[0]:g}; {rule}")
        return images.transpose(3, 0, 1, 2), labels.ravel().astype(np.int64) % 10


_SVHN_MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
SVHN = Source(
    name="svhn",
    about="99,289 house numbers, 32x32, 10 classes",
    read=read_svhn,
    origins=_SVHN,
    home="http://ufldl.stanford.edu/housenumbers/",
    files={"train_32x32.mat": 182_040_794, "test_32x32.mat": 64_275_384},
    md5=_SVHN_MD5,
    moments=Moments(mean=(0.5,), std=(0.5,)),
)


# fmt: off
_FLOWERS = (  # of the categories on the set's page, in the order of its labels
    "pink primrose", "hard-leaved pocket orchid", "canterbury bells", "sweet pea",
    "english marigold", "tiger lily", "moon orchid", "bird of paradise", "monkshood",
    "globe thistle", "snapdragon", "colt's foot", "king protea", "spear thistle", "yellow iris",
    "globe-flower", "purple coneflower", "peruvian lily", "balloon flower", "giant white arum lily",
    "fire lily", "pincushion flower", "fritillary", "red ginger", "grape hyacinth", "corn poppy",
    "prince of wales feathers", "stemless gentian", "artichoke", "sweet william", "carnation",
    "garden phlox", "love in the mist", "mexican aster", "alpine sea holly", "ruby-lipped cattleya",
    "cape flower", "great masterwort", "siam tulip", "lenten rose", "barbeton daisy", "daffodil",
    "sword lily", "poinsettia", "bolero deep blue", "wallflower", "marigold", "buttercup",
    "oxeye daisy", "common dandelion", "petunia", "wild pansy", "primula", "sunflower",
    "pelargonium", "bishop of llandaff", "gaura", "geranium", "orange dahlia",
    "pink-yellow dahlia?", "cautleya spicata", "japanese anemone", "black-eyed susan", "silverbush",
    "californian poppy", "osteospermum", "spring crocus", "bearded iris", "windflower",
    "tree poppy", "gazania", "azalea", "water lily", "rose", "thorn apple", "morning glory",
    "passion flower", "lotus", "toad lily", "anthurium", "frangipani", "clematis", "hibiscus",
    "columbine", "desert-rose", "tree mallow", "magnolia", "cyclamen", "watercress", "canna lily",
    "hippeastrum", "bee balm", "ball moss", "foxglove", "bougainvillea", "camellia", "mallow",
    "mexican petunia", "bromelia", "blanket flower", "trumpet creeper", "blackberry lily",
)
# fmt: on
_FLOWERS_FILES = {  # names -> what is in the file
    ("jpg", "102flowers.tgz"): "image_00001.jpg and so on, one a label",
    ("imagelabels.mat",): "labels [1, n] from 1 to 102",
    ("setid.mat",): "trnid, valid and tstid",
}
_FLOWERS_ORIGINS = tuple(
    Origin(
        f"{' or '.join(names)}, with {content}",
        "download it from the dataset's page (Oxford VGG, 102 Category Flower Dataset)",
        names=names,
        folders=("flowers102", "flowers-102", "102flowers", ""),
    )
    for names, content in _FLOWERS_FILES.items()
)


def read_flowers102(source: Path, labels_file: Path, sets_file: Path, options: ReadOptions) -> Raw:
    """Central squares, 64x64x3 or of `image_size`; official sets train, val and test."""
    of_images, of_labels, of_sets = _FLOWERS_ORIGINS
    with reading(labels_file, of_labels):
        labels = (
            take(load_mat("flowers102", labels_file), ("labels",), "arrays")[0]
            .ravel()
            .astype(np.int64)
        )
    with reading(sets_file, of_sets):
        arrays = take(load_mat("flowers102", sets_file), ("trnid", "valid", "tstid"), "arrays")
        train, val, test = (array.ravel().astype(np.int64) - 1 for array in arrays)
        if not all(0 <= i < len(labels) for i in (*train, *val, *test)):
            raise ValueError(f"an image number is not in 1 to {len(labels)}")
    with reading(source, of_images):
        pattern = re.compile(r"(?:^|/)(?P<image>image_\d{5})\.jpg$")
        pile, _ = decode_members(source, pattern, options.image_size, options.target)
        images = pile.stack([f"image_{i:05d}" for i in range(1, len(labels) + 1)])
    return Raw(
        images,
        labels - 1,
        _FLOWERS,
        official={"train": train, "val": val, "test": test},
        reading=Reading(path=str(source)),
    )


_FLOWERS_MD5 = {
    "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
    "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
    "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
}
FLOWERS102 = Source(
    name="flowers102",
    about="8,189 photographs of flowers, many sizes, 102 classes",
    read=read_flowers102,
    origins=_FLOWERS_ORIGINS,
    is_kept=True,
    size=_SIZE,
    home="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    files={"102flowers.tgz": 344_862_509, "imagelabels.mat": 502, "setid.mat": 14_989},
    md5=_FLOWERS_MD5,
)
