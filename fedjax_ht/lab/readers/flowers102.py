"""Oxford Flowers-102: 102flowers.tgz or jpg/, imagelabels.mat and setid.mat.

Source: Nilsback and Zisserman 2008.
"""

import functools
import re
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.checksums import check_sum
from fedjax_ht.lab.readers.images import decode_members
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe.archive import Origin, reading, search, take
from fedjax_ht.lab.safe.mat import load_mat

_PAGE = "download it from the dataset's page (Oxford VGG, 102 Category Flower Dataset)"
# fmt: off
_NAMES = (  # of the categories on the set's page, in the order of its labels
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
        search("flowers102", data_dir, _FOLDERS, names, Origin(" or ".join(names), _PAGE))
        for names in files
    )


def read_flowers102(data_dir: Path | None, options: ReadOptions) -> Raw:
    """Central squares, 64x64x3 or of `image_size`; official sets train, val and test."""
    images, labels, sets = find_flowers102(data_dir)
    size = options.image_size or 64
    build = functools.partial(_decode, images, labels, sets, size)
    return cached("flowers102", size, data_dir, (images, labels, sets), build)


def _decode(
    source: Path, labels_file: Path, sets_file: Path, size: int, target: Path | None
) -> Raw:
    with reading(labels_file, Origin("labels [1, n] from 1 to 102", _PAGE)):
        warnings = check_sum(MD5, labels_file)
        labels = (
            take(load_mat("flowers102", labels_file), ("labels",), "arrays")[0]
            .ravel()
            .astype(np.int64)
        )
    with reading(sets_file, Origin("trnid, valid and tstid", _PAGE)):
        warnings += check_sum(MD5, sets_file)
        arrays = take(load_mat("flowers102", sets_file), ("trnid", "valid", "tstid"), "arrays")
        train, val, test = (array.ravel().astype(np.int64) - 1 for array in arrays)
        if not all(0 <= i < len(labels) for i in (*train, *val, *test)):
            raise ValueError(f"an image number is not in 1 to {len(labels)}")
    with reading(source, Origin("image_00001.jpg and so on, one a label", _PAGE)):
        warnings += check_sum(MD5, source)
        pile, *_ = decode_members(
            source, re.compile(r"(?:^|/)(?P<image>image_\d{5})\.jpg$"), size, target
        )
        images = pile.stack([f"image_{i:05d}" for i in range(1, len(labels) + 1)])
    return Raw(
        images,
        labels - 1,
        _NAMES,
        official={"train": train, "val": val, "test": test},
        reading=Reading(path=str(source), warnings=warnings),
    )


MD5 = {
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
    md5=MD5,
)
