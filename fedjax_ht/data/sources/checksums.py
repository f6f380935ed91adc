"""The sums that the publishers' files are known by.

They are on the sets' own pages (CIFAR, Fashion-MNIST) and in the lists of torchvision and of other
loaders. A file of a publisher's name that is not the publisher's file may be meant so, such as a
part of the set: it is read, with one line.
"""

import hashlib
import logging
from pathlib import Path

from fedjax_ht.data.files.bounded import open_regular

_MD5 = {
    "mnist": {  # of the .gz files, and of what is in them
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {  # the same
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    "cifar10": {
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    "cifar100": {
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    "svhn": {
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    },
    "flowers102": {
        "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
        "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
        "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
    },
    "food101": {"food-101.tar.gz": "85eeb15f3717b99a5da872d97d918f87"},
    "ag_news": {
        "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
        "test.csv": "d52ea96a97a2d943681189a97654912d",
    },
    "tiny_imagenet": {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
}


def published(name: str, file: str) -> str | None:
    """The MD5 sum of a file of set `name`, None if it is not known."""
    return _MD5[name].get(file)


def check_sum(name: str, path: Path, content: bytes | bytearray | None = None) -> None:
    """One line as a warning if the publisher of set `name` has a file of this name, and it has
    another MD5 sum.

    Args:
      name: of the set.
      path: of the file.
      content: what is in it, if that is in memory.
    """
    expected = _MD5[name].get(path.name)
    if expected is None or path.is_dir():
        return
    if content is None:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    else:
        digest = hashlib.md5(content, usedforsecurity=False)
    if digest.hexdigest() != expected:
        logging.warning(
            f"{path}: its MD5 sum is {digest.hexdigest()}, the publisher's file has {expected}"
        )
