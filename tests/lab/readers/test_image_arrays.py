"""Arrays of .npz files: which are images, how they become bytes, and by which names they are found."""

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import pixels, refused

RNG = np.random.default_rng(0)
Y = np.arange(30) % 3
PHOTOS = pixels(30, 12, 10, 3)
WINDOWS = np.clip(RNG.normal(0, 0.2, (30, 32, 9)), -1, 1)


def saved(tmp_path, **arrays) -> str:
    np.savez(tmp_path / "own.npz", **arrays)
    return f"npz:{tmp_path}/own.npz"


# Which are images

KEPT = {  # floats that are no images, or may be none: a line says so where they may be
    "conv2d": (WINDOWS[..., None], True),
    "units": (WINDOWS.reshape(30, 32, 3, 3), False),
    "a row": (WINDOWS[:, None, :, :3], False),
    "channels first": (WINDOWS[..., None].transpose(0, 3, 1, 2), True),
    "three axes": (WINDOWS, True),
    "large windows": (9 * WINDOWS, False),
    "resized photos": ((PHOTOS / 255).astype(np.float32) * 0.99, True),
    "standardised photos": ((PHOTOS - 120.0) / 60, True),
}


@pytest.mark.parametrize("kind", KEPT)
def test_floats_that_are_no_steps_of_bytes_are_kept(tmp_path, caplog, kind):
    x, is_doubtful = KEPT[kind]
    dataset = load_dataset(saved(tmp_path, x=x, y=Y))
    assert dataset.inputs.dtype == np.float32 and isinstance(dataset.preprocess, fl.AsStored)
    np.testing.assert_array_equal(dataset.inputs, x.astype(np.float32))
    lines = [line for line in caplog.messages if "kept as floats" in line]
    assert len(lines) == len(caplog.messages) == is_doubtful
    assert all("Call it images if it is, or inputs to end this line" in line for line in lines)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("signed", [False, True])
def test_floats_in_steps_of_bytes_are_images(tmp_path, dtype, signed):
    x = PHOTOS / 255
    if signed:
        x = (x - 0.5) / 0.5
    dataset = load_dataset(saved(tmp_path, x=x.astype(dtype), y=Y))
    assert np.abs(dataset.inputs.astype(int) - PHOTOS).max() <= (dtype == np.float16)
    assert "kept as bytes" in fl.describe(dataset).lines[0]


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (pixels(30, 128, 9), "bytes of other proportions than an image's; call it images if they"),
        (pixels(30, 144), "images.reshape(-1, H, W, C) makes them of rows of pixels"),
        (PHOTOS.astype(float), "of whole numbers from 0 to 255; give images as x.astype(np.uint8)"),
        (PHOTOS > 9, "call it images if it is, where True becomes 255, or give inputs=x.astype"),
    ],
)
def test_bytes_that_may_be_none_are_refused(tmp_path, x, reason):
    refused(reason, saved(tmp_path, x=x, y=Y))


# How they become bytes


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (PHOTOS.astype(int), PHOTOS),
        (PHOTOS.astype(np.float32), PHOTOS),
        (PHOTOS > 99, 255 * (PHOTOS > 99)),
        (PHOTOS / 255 + 1e-7, PHOTOS),
        (PHOTOS / 255 - 1e-4, PHOTOS),
    ],
)
def test_images_without_doubt_are_bytes(tmp_path, caplog, images, expected):
    dataset = load_dataset(saved(tmp_path, images=images, labels=Y))
    np.testing.assert_array_equal(dataset.inputs, expected)
    assert fl.describe(dataset).converted and not caplog.messages


def with_pixel(value: float) -> np.ndarray:
    """Floats in [0, 1] but for one."""
    images = PHOTOS / 255
    images[3, 2, 1, 0] = value
    return images


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (with_pixel(-0.3), "of which 1 of 10,800 values are negative: too few to say [-1, 1]"),
        (with_pixel(1.7), "divide by the maximum"),
        ((PHOTOS - 120.0) / 60, "as they were before they were normalised, uint8, or call the"),
        (PHOTOS.astype(int) * 3, "give them as uint8, from 0 to 255"),
        (PHOTOS // 16 / 1.0, "divide by the maximum, for floats in [0, 1]"),
    ],
)
def test_one_pixel_chooses_no_range(tmp_path, images, reason):
    refused(reason, saved(tmp_path, images=images, labels=Y))


def test_nearly_black_images_are_said(tmp_path, caplog):
    load_dataset(saved(tmp_path, images=PHOTOS // 16, labels=Y))
    assert "images of bytes run from 0 to 15, nearly black" in caplog.text


# Names

NAMES = {
    "MedMNIST": (
        "train_images",
        "train_labels",
        "val_images",
        "val_labels",
        "test_images",
        "test_labels",
    ),
    "Keras": ("x_train", "y_train", "x_test", "y_test"),
    "scikit-learn": ("X_train", "y_train", "X_valid", "y_valid"),
    "inputs": ("inputs_train", "label_train", "inputs_test", "label_test"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_sets_by_the_names_of_arrays(tmp_path, names):
    count = len(names) // 2
    parts = np.split(np.arange(30), 3)[:count]
    arrays = {}
    for name, indices in zip(names, np.repeat(np.arange(count), 2)):
        is_label = name.lower().strip("_")[0] == "y" or "label" in name
        arrays[name] = Y[parts[indices]][:, None] if is_label else PHOTOS[parts[indices]]
    dataset = load_dataset(saved(tmp_path, **arrays))
    np.testing.assert_array_equal(dataset.inputs, PHOTOS[: 10 * count])
    sets = [
        {"train": 10, "test": 10},
        {"train": 10, "val": 10},
        {"train": 10, "val": 10, "test": 10},
    ]
    assert fl.describe(dataset).splits in sets and len(dataset.official) == count


@pytest.mark.parametrize("names", [("X", "y"), ("data", "target"), ("input", "label")])
def test_one_array_of_samples(tmp_path, names):
    samples, labels = names
    dataset = load_dataset(saved(tmp_path, **{samples: WINDOWS[:, 0], labels: Y}))
    assert dataset.inputs.shape == (30, 9) and dataset.official == {}
    images = load_dataset(saved(tmp_path, Images=PHOTOS, Labels=Y))
    assert images.input_shape == (12, 10, 3)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("x", "images", "y"), "its arrays x and images may both be the samples; leave one of"),
        (("x", "y", "labels"), "its arrays y and labels may both be the labels"),
        (("arr_0", "arr_1"), "its arrays are arr_0, arr_1, of which none, or not all, are samples"),
        (("x_train", "x_test", "y_train"), "samples of train and test, and labels of train; each"),
        (("x", "y_train"), "samples of , and labels of train"),
        (("x_test", "y_test"), "of which none, or not all, are samples"),
    ],
)
def test_names_that_may_be_either_are_refused(tmp_path, names, reason):
    arrays = {name: Y if name[0] in "yl" else PHOTOS for name in names}
    refused(reason, saved(tmp_path, **arrays))


def test_arrays_that_are_not_read_are_said(tmp_path, caplog):
    name = saved(tmp_path, images=PHOTOS, labels=Y, subject=Y, class_names=["a", "b", "c"])
    dataset = load_dataset(name)
    assert caplog.messages == [f"{name}: left out: array subject (of no name that is read)"]
    assert fl.describe(dataset).left_out[0].what == "array subject"


# Labels


def test_labels_of_arrays(tmp_path, caplog):
    assert load_dataset(saved(tmp_path, images=PHOTOS, labels=1.0 * Y)).num_classes == 3
    load_dataset(saved(tmp_path, images=PHOTOS, labels=2 * Y))
    assert "2 of 5 classes have no sample: classes 1, 3" in caplog.text
    load_dataset(saved(tmp_path, images=PHOTOS, labels=0 * Y))
    assert "all 30 samples are of one class, 0" in caplog.text
    void = np.where(Y == 2, 255, Y)
    refused("255, which marks samples without a label", saved(tmp_path, images=PHOTOS, labels=void))
    refused("labels has 30 classes in 30", saved(tmp_path, images=PHOTOS, labels=np.arange(30)))
