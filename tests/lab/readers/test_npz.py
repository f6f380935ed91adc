"""Arrays of .npz files: their names, which are images, and how those become bytes."""

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.inputs import AsStored, Pixels
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import load_error, pixels, refused, sets

RNG = np.random.default_rng(0)
Y = np.arange(30) % 3
PHOTOS = pixels(30, 12, 10, 3)
BYTES = np.zeros((2, 4, 4), np.uint8)
WINDOWS = np.clip(RNG.normal(0, 0.2, (30, 32, 9)), -1, 1)
SIGNALS = 3 * RNG.normal(size=(4, 16, 9))
OWN_LABELS = np.array([0, 2, 1, 2])


def saved(tmp_path, **arrays) -> str:
    np.savez(tmp_path / "own.npz", **arrays)
    return f"npz:{tmp_path}/own.npz"


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


NAMES = {
    "MedMNIST": tuple(f"{x}_{y}" for x in ("train", "val", "test") for y in ("images", "labels")),
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
    splits = fl.describe(dataset).splits
    assert set(splits.values()) == {10} and {"train"} < splits.keys() <= {"train", "val", "test"}
    assert len(dataset.official) == len(splits) == count


@pytest.mark.parametrize("names", ["X y", "data target", "input label", "Features Targets"])
def test_one_array_of_samples(tmp_path, names):
    samples, labels = names.split()
    dataset = load_dataset(saved(tmp_path, **{samples: WINDOWS[:, 0], labels: Y}))
    assert dataset.inputs.shape == (30, 9) and dataset.official == {}


KEPT = {  # key, what is stored, the dtype that is kept, and whether it may be images all the same
    "conv2d": ("x", WINDOWS[..., None], np.float32, True),
    "channels first": ("x", WINDOWS[..., None].transpose(0, 3, 1, 2), np.float32, True),
    "resized photos": ("x", (PHOTOS / 255).astype(np.float32) * 0.99, np.float32, True),
    "standardised photos": ("x", (PHOTOS - 120.0) / 60, np.float32, True),
    "units": ("x", WINDOWS.reshape(30, 32, 3, 3), np.float32, False),
    "a row": ("x", WINDOWS[:, None, :, :3], np.float32, False),
    "three axes": ("x", WINDOWS, np.float32, False),
    "windows": ("x", SIGNALS, np.float32, False),
    "half windows": ("x", SIGNALS.astype(np.float16), np.float16, False),
    "big endian": ("x", SIGNALS.astype(">f4"), np.float32, False),
    "units and channels": ("x", SIGNALS[:, :, None].repeat(2, 2) / 9, np.float32, False),
    "rows": ("x", SIGNALS[:, 0] / 9, np.float32, False),
    "tokens": ("x", RNG.integers(0, 9, (4, 7)), np.int32, False),
    "small tokens": ("x", RNG.integers(0, 9, (4, 7), np.uint16), np.uint16, False),
    "grey floats as they are": ("inputs", SIGNALS / 20, np.float32, False),
    "bytes as they are": ("inputs", pixels(4, 5, 5, 3), np.uint8, False),
    "integers as they are": ("inputs", RNG.integers(-9, 9, (4, 5, 5)), np.int32, False),
}


@pytest.mark.parametrize("kind", KEPT)
def test_arrays_that_are_no_images_are_kept_as_stored(tmp_path, caplog, kind):
    """A line says so where they may be images."""
    key, stored, dtype, is_doubtful = KEPT[kind]
    dataset = load_dataset(saved(tmp_path, **{key: stored, "labels": np.arange(len(stored)) % 3}))
    assert dataset.inputs.dtype == dtype and dataset.inputs.dtype.isnative
    assert isinstance(dataset.preprocess, AsStored)
    np.testing.assert_array_equal(dataset.inputs, stored.astype(dtype))
    assert dataset.num_classes == 3 and dataset.groups is None
    assert ["kept as floats" in line for line in caplog.messages] == [True] * is_doubtful
    assert all("or inputs to silence this warning" in line for line in caplog.messages)


def test_small_grey_floats_are_images_and_one_line_says_so(tmp_path, caplog):
    images = pixels(4, 6, 5)
    dataset = load_dataset(saved(tmp_path, x=images / 255, y=OWN_LABELS))
    np.testing.assert_array_equal(dataset.inputs[..., 0], images)
    assert isinstance(dataset.preprocess, Pixels)
    (line,) = caplog.messages
    assert "own.npz: x is float64 (4, 6, 5) within -1 to 1: grey images. Call" in line


@pytest.mark.parametrize("owners", [np.int8([7, 7, 2, 3]), np.array(["d", "d", "a", "b"])])
@pytest.mark.parametrize("key", ["group", "person"])
def test_groups_of_samples(tmp_path, owners, key):
    arrays = {"x": SIGNALS, "y": OWN_LABELS, "class_names": ["x", "y", "z"], key: owners}
    dataset = load_dataset(saved(tmp_path, **arrays))
    expected = [7, 7, 2, 3] if owners.dtype.kind == "i" else [2, 2, 0, 1]
    assert dataset.groups.tolist() == expected and dataset.class_names == ("x", "y", "z")
    two = {}
    for name, values in (("x", SIGNALS), ("y", OWN_LABELS), (key, owners)):
        two |= {f"{name}_train": values[:3], f"{name}_test": values[3:]}
    dataset = load_dataset(saved(tmp_path, **two))
    assert dataset.groups.tolist() == expected and dataset.official["test"].tolist() == [3]


@pytest.mark.parametrize("of_set", ["test", "val"])
def test_official_sets_by_a_mask(tmp_path, of_set):
    arrays = {"x": SIGNALS, "y": OWN_LABELS, f"official_{of_set}": [False, True, False, True]}
    dataset = load_dataset(saved(tmp_path, **arrays))
    assert sets(dataset) == {"train": [0, 2], of_set: [1, 3]}


@pytest.mark.parametrize(
    ("stored", "channels"),
    [
        (lambda b: b[..., 0], 1),
        (lambda b: b[..., :1], 1),
        (lambda b: b, 3),
        (lambda b: b.transpose(0, 3, 1, 2), 3),
        (lambda b: b[..., :1].transpose(0, 3, 1, 2), 1),
    ],
)
@pytest.mark.parametrize("key", ["images", "x"])
def test_channels_of_images(tmp_path, stored, channels, key):
    images = pixels(4, 6, 5, 3)
    saved(tmp_path, **{key: stored(images), "labels": OWN_LABELS})
    dataset = load_dataset("npz:own.npz", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, images[..., :channels])
    assert dataset.labels.tolist() == [0, 2, 1, 2] and dataset.class_names == ("0", "1", "2")
    assert dataset.name == "npz:own.npz" and dataset.official == {}
    assert dataset.inputs.flags.c_contiguous


def named(*names: str) -> dict[str, np.ndarray]:
    """Arrays of these names, labels where the name says so."""
    return {name: Y if name[0] in "yl" else PHOTOS for name in names}


def two_scales(train, test) -> dict[str, np.ndarray]:
    return {"x_train": train, "y_train": Y, "x_test": test, "y_test": Y}


def photos(images, labels=Y) -> dict[str, np.ndarray]:
    return {"images": images, "labels": labels}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        # bytes and floats that may be no images
        ({"x": pixels(30, 128, 9), "y": Y}, "bytes without an image's proportions; call it"),
        ({"x": pixels(30, 144), "y": Y}, "rows of pixels need images.reshape(-1, H, W, C)"),
        ({"x": PHOTOS.astype(float), "y": Y}, "of integers from 0 to 255; give images as"),
        ({"x": PHOTOS > 9, "y": Y}, "call it images if it is, where True becomes 255, or"),
        ({"x": SIGNALS > 0}, "x is bool (4, 16, 9); call it images"),
        ({"x": RNG.integers(0, 9, (4, 5, 5))}, "int64 images"),
        (two_scales(PHOTOS / 255, PHOTOS), "x_train is float64 and x_test is uint8, which may"),
        # one pixel chooses no range
        (photos(with_pixel(1.7)), "divide by the maximum"),
        (photos((PHOTOS - 120.0) / 60), "as they were before they were normalised, uint8, or"),
        (photos(PHOTOS.astype(int) * 3), "give them as uint8, from 0 to 255"),
        (photos(PHOTOS // 16 / 1.0), "divide by the maximum, for floats in [0, 1]"),
        (photos(BYTES - 1.5, [0, 1]), "from -1.5"),
        # names
        (named("x", "images", "y"), "its arrays x and images may both be the samples; remove one"),
        (named("x", "y", "labels"), "its arrays y and labels may both be the labels"),
        (named("arr_0", "arr_1"), "are arr_0, arr_1; none, or not all, are samples"),
        (
            named("x_train", "x_test", "y_train"),
            "samples for train and test, and labels for train;",
        ),
        (named("x", "y_train"), "samples for , and labels for train"),
        (named("x_test", "y_test"), "none, or not all, are samples"),
        ({"images": BYTES, "names": [0, 1]}, "its arrays are images, names"),
        # values and shapes
        ({"x": SIGNALS * np.inf}, "x has values that are NaN, infinite"),
        ({"x": 1e300 * SIGNALS}, "beyond float32"),
        ({"x": OWN_LABELS}, "images of shape (4,)"),
        ({"inputs": OWN_LABELS}, "inputs is int64 (4,); samples are"),
        ({"inputs": SIGNALS > 0}, "inputs is bool"),
        (photos(BYTES * np.nan, [0, 1]), "NaN"),
        (photos(np.zeros((2, 4, 4, 2), np.uint8), [0, 1]), "(2, 4, 4, 2)"),
        (photos(BYTES[:, :0, :0], [0, 1]), "a sample is [0, 0, 1], an empty array"),
        ({"x": BYTES[:, :0], "y": [0, 1]}, "a sample is [0, 4, 1], an empty array"),
        (photos(np.array([{}, {}]), [0, 1]), "pickle"),
        # labels, groups, names of classes, sets
        (photos(BYTES, [0, -1]), "labels run from -1"),
        (photos(BYTES, [0, 1, 2]), "2 samples but labels of shape (3,)"),
        (photos(PHOTOS, np.arange(30)), "labels has 30 classes in 30"),
        ({"x": SIGNALS, "group": OWN_LABELS / 2}, "group of float64 (4,); they must be integers"),
        ({"x": SIGNALS, "group": OWN_LABELS[:2]}, "groups are int32 (2,)"),
        ({"x": SIGNALS, "class_names": ["a"]}, "labels run from 0 to 2, but there are 1 class"),
        ({"x": SIGNALS, "class_names": [1, 2, 3]}, "class_names is int64 (3,), not text"),
        ({"x": SIGNALS, "official_test": [0, 1, 0, 1]}, "official_test is int64 (4,), not bool"),
    ],
)
def test_other_arrays_are_refused_in_one_line(tmp_path, arrays, reason):
    has_labels = len(arrays) > 1 and not {"group", "class_names", "official_test"} & set(arrays)
    name = saved(tmp_path, **({} if has_labels else {"y": OWN_LABELS}) | arrays)
    message = load_error(ValueError, name)
    assert message.startswith(str(tmp_path / "own.npz")) and reason in message
    assert "or inputs=... if they are not images" in message


def test_no_npz(tmp_path):
    refused("own.npz", "npz:own.npz", tmp_path, kind=FileNotFoundError)
    for content in (b"", b"no zip", b"PK\x03\x04 damaged"):
        (tmp_path / "own.npz").write_bytes(content)
        assert load_error(ValueError, "npz:own.npz", tmp_path).startswith(str(tmp_path / "own.npz"))
    np.save(tmp_path / "own.npy", BYTES)
    refused("single array", "npz:own.npy", tmp_path)


def test_columns_have_names(tmp_path):
    arrays = {"x": SIGNALS[:, 0, :2], "y": OWN_LABELS}
    named = load_dataset(saved(tmp_path, **arrays, column_names=["u", "v"]))
    assert named.reading.features == ("u", "v")
    for names in (["u", "u"], ["u", "v", "w"]):
        name = saved(tmp_path, **arrays, column_names=names)
        refused("different names, but a sample is [2]", name)
