"""Sets of photographs as their publishers give them.

SVHN (Netzer et al. 2011), Flowers-102 (Nilsback and Zisserman 2008), Food-101 (Bossard et al.
2014), Tiny ImageNet (Stanford CS231n) and Camelyon17 as WILDS publishes it (Bandi et al. 2018, Koh
et al. 2021).
"""

import functools
import io
import re
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.check.packages import needing
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.images import decode_members
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, one_after_another
from fedjax_ht.lab.readers.source import (
    CIFAR100_MOMENTS,
    IMAGENET_MOMENTS,
    Moments,
    Source,
    check_sum,
)
from fedjax_ht.lab.readers.table_files import table_with_head
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, archive_or_folder, reading, search, take
from fedjax_ht.lab.safe.bounded import read_whole

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
    name: str,
    origin: Origin,
    names: Sequence[str],
    marker: str,
    *,
    pattern: re.Pattern,
    listed: Callable[[Collection[str], dict[str, str]], _Listed],
    size: int | None,
    **published: Any,
) -> Source:
    """Declares a set that is one archive or its extracted folder; classes are sorted by name.

    Args:
      name, origin, names, marker: arguments of `archive.archive_or_folder`.
      pattern: the pattern of `images.decode_members`.
      listed: a function (keys of all images, text files) -> `_Listed`.
      size: height and width where a user names none; None for the native ones.
      **published: other fields of the `Source`.
    """

    def find(data_dir: Path | None) -> tuple[Path, ...]:
        return archive_or_folder(name, data_dir, names, (marker,), origin)

    def read(data_dir: Path | None, options: ReadOptions) -> Raw:
        (source,) = find(data_dir)
        side = options.image_size or size

        def build(target: Path | None) -> Raw:
            warnings = check_sum(published["md5"], source)
            pile, texts, _ = decode_members(source, pattern, side, target)
            keys, of_images, counts = listed(pile.places, texts)
            classes = sorted(set(of_images))
            return Raw(
                pile.stack(keys),
                np.searchsorted(classes, of_images),
                tuple(classes),
                official=one_after_another(counts),
                reading=Reading(path=str(source), warnings=warnings),
            )

        with reading(source, origin):
            return cached(name, side, data_dir, (source,), build)

    return Source(name=name, read=read, find=find, **published)


def _food101(images: Collection[str], texts: dict[str, str]) -> _Listed:
    del images
    lists = take(texts, ("meta/train.txt", "meta/test.txt"), "files")
    train, test = (text.split() for text in lists)
    keys = train + test  # such as apple_pie/1005649
    counts = [("train", len(train)), ("test", len(test))]
    return _Listed(keys, [key.split("/")[0] for key in keys], counts)


FOOD101 = _archive(
    "food101",
    Origin(
        "food-101.tar.gz or its extracted folder, with images/, meta/train.txt and meta/test.txt",
        "download it from the dataset's page (ETH Zurich, Food-101)",
    ),
    ("food-101", "food-101.tar.gz", "food-101.tar"),
    "meta/train.txt",
    pattern=re.compile(
        r"(?:^|/)(?:images/(?P<image>[^/]+/[^/.][^/]*)\.jpg|(?P<text>meta/(?:train|test)\.txt))$"
    ),
    listed=_food101,
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
    "tiny_imagenet",
    Origin(
        "tiny-imagenet-200.zip or its extracted folder, with train/ and val/val_annotations.txt",
        "download it from the dataset's page (Stanford CS231n, Tiny ImageNet)",
    ),
    ("tiny-imagenet-200", "tiny-imagenet-200.zip"),
    "val/val_annotations.txt",
    pattern=re.compile(
        r"(?:^|/)(?:(?P<image>(?:train/n\d+|val)/images/[^/.][^/]*\.JPEG)"
        r"|(?P<text>val/val_annotations\.txt))$"
    ),
    listed=_tiny_imagenet,
    size=None,
    about="110,000 photographs, 64x64, 200 classes",
    home="http://cs231n.stanford.edu/",
    files={"tiny-imagenet-200.zip": 248_100_043},
    md5={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    moments=IMAGENET_MOMENTS,
)


# Camelyon17

_TISSUES = ("normal", "tumor")
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
_CAMELYON17 = Origin(
    "the folder camelyon17_v1.0, with metadata.csv and patches/patient_P_node_N/*.png",
    "download it from the dataset's page (WILDS, Camelyon17-wilds)",
    fetched=False,
)
_PATCH = re.compile(
    r"^(?P<image>patches/patient_\w+_node_\w+/patch_patient_\w+_node_\w+_x_\w+_y_\w+\.png)$"
)
_VAL, _TEST = 1, 2  # hospitals, of which nothing trains


def find_camelyon17(data_dir: Path | None) -> tuple[Path, ...]:
    """The table and the folder of the patches; see `archive.search`."""
    folders = ("camelyon17", "camelyon17_v1.0", "camelyon17/camelyon17_v1.0", "")
    table = search("camelyon17", data_dir, folders, ("metadata.csv",), _CAMELYON17)
    return table, table.parent / "patches"


def read_camelyon17(data_dir: Path | None, options: ReadOptions) -> Raw:
    """455,954 patches of 96x96x3 by the publisher's table, normal or tumor in the central 32x32.

    `Dataset.groups` are the hospitals, 0 to 4. Official sets are those of WILDS: "val" and "test"
    are all patches of hospitals 1 and 2, "train" and "id_val" those of the other three, by the
    column split (0 and 1).
    """
    table, patches = find_camelyon17(data_dir)
    with reading(table.parent, _CAMELYON17):
        build = functools.partial(_decode_camelyon, table, options.image_size)
        return cached("camelyon17", options.image_size, data_dir, (table, patches), build)


def _decode_camelyon(table: Path, image_size: int | None, target: Path | None) -> Raw:
    keys, values = _patches(table)
    labels, hospitals, splits = np.array(values).T
    pile, *_ = decode_members(table.parent, _PATCH, image_size, target)
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
        keys.append(f"patches/{name}/patch_{name}_x_{x}_y_{y}.png")
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
    find=find_camelyon17,
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
_SVHN = Origin(
    " and ".join(_SVHN_FILES),
    "download it from the dataset's page (Netzer et al., SVHN format 2, cropped digits)",
)


def find_svhn(data_dir: Path | None) -> Iterator[Path]:
    """Yields the two files, each looked for when it is asked for; see `archive.search`."""
    for file in _SVHN_FILES:
        yield search("svhn", data_dir, ("svhn", "SVHN", ""), (file,), _SVHN)


def read_svhn(data_dir: Path | None, options: ReadOptions) -> Raw:
    """Official sets train and test, 32x32x3; the publisher's label 10, or 0, is the digit 0."""
    parts, folder = [], ""
    for path in find_svhn(data_dir):
        parts.append(_svhn_split(path))
        folder = str(path.parent)
    images, labels, warnings = zip(*parts)
    return Raw(
        np.ascontiguousarray(np.concatenate(images)),
        np.concatenate(labels),
        tuple("0123456789"),
        official=one_after_another(zip(("train", "test"), map(len, labels))),
        reading=Reading(path=folder, warnings=sum(warnings, ())),
    )


def _svhn_split(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Images, labels, and lines on values that look wrong."""
    with reading(path, _SVHN):
        warnings = check_sum(_SVHN_MD5, path)
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
        return images.transpose(3, 0, 1, 2), labels.ravel().astype(np.int64) % 10, warnings


_SVHN_MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
SVHN = Source(
    name="svhn",
    about="99,289 house numbers, 32x32, 10 classes",
    read=read_svhn,
    find=find_svhn,
    home="http://ufldl.stanford.edu/housenumbers/",
    files={"train_32x32.mat": 182_040_794, "test_32x32.mat": 64_275_384},
    md5=_SVHN_MD5,
    moments=Moments(mean=(0.5,), std=(0.5,)),
)


_FLOWERS102 = "download it from the dataset's page (Oxford VGG, 102 Category Flower Dataset)"
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
_FOLDERS = ("flowers102", "flowers-102", "102flowers", "")


def find_flowers102(data_dir: Path | None) -> tuple[Path, ...]:
    """The images, their labels and the sets; see `archive.search`."""
    files = (("jpg", "102flowers.tgz"), ("imagelabels.mat",), ("setid.mat",))
    return tuple(
        search(
            "flowers102",
            data_dir,
            _FOLDERS,
            names,
            Origin(" or ".join(names), _FLOWERS102),
        )
        for names in files
    )


def read_flowers102(data_dir: Path | None, options: ReadOptions) -> Raw:
    """Central squares, 64x64x3 or of `image_size`; official sets train, val and test."""
    images, labels, sets = find_flowers102(data_dir)
    size = options.image_size or _SIZE
    build = functools.partial(_decode_flowers, images, labels, sets, size)
    return cached("flowers102", size, data_dir, (images, labels, sets), build)


def _decode_flowers(
    source: Path, labels_file: Path, sets_file: Path, size: int, target: Path | None
) -> Raw:
    with reading(labels_file, Origin("labels [1, n] from 1 to 102", _FLOWERS102)):
        warnings = check_sum(_FLOWERS_MD5, labels_file)
        labels = (
            take(load_mat("flowers102", labels_file), ("labels",), "arrays")[0]
            .ravel()
            .astype(np.int64)
        )
    with reading(sets_file, Origin("trnid, valid and tstid", _FLOWERS102)):
        warnings += check_sum(_FLOWERS_MD5, sets_file)
        arrays = take(load_mat("flowers102", sets_file), ("trnid", "valid", "tstid"), "arrays")
        train, val, test = (array.ravel().astype(np.int64) - 1 for array in arrays)
        if not all(0 <= i < len(labels) for i in (*train, *val, *test)):
            raise ValueError(f"an image number is not in 1 to {len(labels)}")
    with reading(source, Origin("image_00001.jpg and so on, one a label", _FLOWERS102)):
        warnings += check_sum(_FLOWERS_MD5, source)
        pile, *_ = decode_members(
            source, re.compile(r"(?:^|/)(?P<image>image_\d{5})\.jpg$"), size, target
        )
        images = pile.stack([f"image_{i:05d}" for i in range(1, len(labels) + 1)])
    return Raw(
        images,
        labels - 1,
        _FLOWERS,
        official={"train": train, "val": val, "test": test},
        reading=Reading(path=str(source), warnings=warnings),
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
    find=find_flowers102,
    home="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    files={"102flowers.tgz": 344_862_509, "imagelabels.mat": 502, "setid.mat": 14_989},
    md5=_FLOWERS_MD5,
)
