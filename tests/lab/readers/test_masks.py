"""Folders of images and masks: sets, places, palettes, sizes, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from fedjax_ht.lab.readers.registry import load_dataset
from tests.lab.readers.source_files import refused, sets

RNG = np.random.default_rng(0)


def write(root, key, image=None, mask=None, mode="L"):
    """Writes an image as images/KEY.jpg and its mask as masks/KEY.png; None writes neither."""
    for of, ending, pixels in (("images", "jpg", image), ("masks", "png", mask)):
        if pixels is not None:
            path = root / of / f"{key}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            made = Image.fromarray(pixels)
            if of == "masks" and mode == "P":
                made = made.convert("L")
                made.putpalette([*range(30, 60)])
            made.save(path)


def sample(height=8, width=6):
    mask = RNG.integers(0, 3, (height, width)).astype(np.uint8)
    return RNG.integers(0, 255, (height, width, 3)).astype(np.uint8), mask


def read(root, **options):
    return load_dataset(f"masks:{root}", task="per-pixel", **options)


def read_refused(words, root):
    refused(words, f"masks:{root}", task="per-pixel")


@pytest.mark.parametrize("mode", ["L", "P"])
def test_sets_are_official_and_values_are_classes(tmp_path, mode):
    masks = {}
    for key in ("train/b", "train/a", "test/c"):
        image, masks[key] = sample()
        masks[key][0, 0] = 255 if mode == "L" else 0
        write(tmp_path, key, image, masks[key], mode)
    dataset = read(tmp_path)
    assert dataset.inputs.shape == (3, 8, 6, 3) and dataset.class_names == ("0", "1", "2")
    in_order = [masks[key] for key in sorted(masks)]
    np.testing.assert_array_equal(dataset.targets, in_order)
    assert sets(dataset) == {"train": [1, 2], "test": [0]} and dataset.groups is None


def test_places_are_groups_and_masks_are_resized_without_mixing(tmp_path):
    for key, side in (("north/1", 8), ("south/1", 12), ("south/2", 8)):
        image, _ = sample(side, side)
        mask = np.zeros((side, side), np.uint8)
        mask[:, side // 2 :] = 2
        write(tmp_path, key, image, mask)
    read_refused("2 sizes", tmp_path)
    dataset = read(tmp_path, image_size=4)
    assert dataset.groups.tolist() == [0, 1, 1]
    assert dataset.reading.group_names == ("north", "south")
    np.testing.assert_array_equal(dataset.targets, np.tile([0, 0, 2, 2], (3, 4, 1)))
    write(tmp_path, "south/3", sample(8, 8)[0], 2 * RNG.integers(0, 2, (8, 8)).astype(np.uint8))
    assert np.unique(read(tmp_path, image_size=4).targets).tolist() == [0, 2]


def test_what_is_refused(tmp_path):
    image, mask = sample()
    write(tmp_path, "a", image, mask)
    refused("its labels are masks; set task to 'per-pixel'", f"masks:{tmp_path}")
    write(tmp_path, "b", image)
    read_refused("2 images and 1 masks; unmatched: b", tmp_path)
    write(tmp_path, "b", None, np.stack([mask] * 3, -1))
    read_refused("mask masks/b.png cannot be decoded (mode RGB", tmp_path)
    (tmp_path / "masks" / "b.png").write_bytes(b"no image")
    read_refused("mask masks/b.png cannot be decoded", tmp_path)


def test_sets_beside_places_are_refused(tmp_path):
    for key in ("train/a", "north/a"):
        write(tmp_path, key, *sample())
    read_refused("folders north, train are sets and places", tmp_path)


def test_two_images_of_one_name_are_refused(tmp_path):
    image, mask = sample()
    write(tmp_path, "a", image, mask)
    Image.fromarray(image).save(tmp_path / "images" / "a.png")
    read_refused("images/a.jpg and images/a.png may both be meant", tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "images").mkdir()
    read_refused("0 images and 0 masks", tmp_path)
