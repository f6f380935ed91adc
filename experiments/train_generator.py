r"""Trains an embedded generator, anew or from where the same command stopped, and writes an .npz.

    python -m experiments.train_generator --data=fashion_mnist --data_dir=DIR --minutes=60 \
        --workdir=DIR --out=FILE.npz

Ctrl-C and SIGTERM save first. --minutes=0 with --out exports the generator in a workdir, even while
another process trains.
"""

import json
import math
import time
from pathlib import Path

from absl import app, flags

from experiments.gan import GanState, Recipe, init_gan
from experiments.generator_data import Pictures, load_pictures
from experiments.generator_training import (
    Log,
    export,
    read_checkpoint,
    train,
    write_checkpoint,
    write_samples,
)
from fedjax_ht.check.options import INT
from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.runs.folder import remember_fields
from fedjax_ht.lab.runs.signals import catch_signals
from fedjax_ht.models.generator import Card

WIDEST = 1024  # most channels

_DATA = flags.DEFINE_string("data", None, "A dataset's name, or an .npz of 32x32 JPEG files.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where the dataset's files are.")
_CHANNELS = flags.DEFINE_list(
    "channels", ["128", "96", "48", "16"], "Of the maps of 4, 8, 16 and 32 pixels."
)
_CLASSES = flags.DEFINE_list("classes", [], "Names of the classes to train on; all by default.")
_CONDITIONAL = flags.DEFINE_bool(
    "conditional", False, "Also learn to make images of a given class."
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where checkpoints, losses.csv and sample pictures are written."
)
_MINUTES = flags.DEFINE_float("minutes", 60.0, "For how long to train now.")
_IMAGES = flags.DEFINE_integer(
    "images", None, "Stop when so many images have been seen, all calls together.", lower_bound=1
)
_SEED = flags.DEFINE_integer("seed", 0, "Of weights, batches and noise.", 0, INT)
_OUT = flags.DEFINE_string(
    "out", None, "Write the generator to this .npz, and a picture of its samples beside it."
)
_TRAINED_ON = flags.DEFINE_list(
    "trained_on", None, "Names of the datasets it has seen; by default --data."
)
_DOMAIN = flags.DEFINE_string("domain", "", "For the card: what the images show.")
_LICENCE = flags.DEFINE_string("licence", "", "For the card: of the weights.")


@orderly_main
def main(_) -> None:
    check_flags()
    workdir, seed = Path(_WORKDIR.value), _SEED.value
    pictures = load_pictures(_DATA.value, _DATA_DIR.value, _CLASSES.value)
    num_classes = len(pictures.classes) if _CONDITIONAL.value else 0
    recipe = Recipe(channels=channels(), num_classes=num_classes)
    config = {
        "data": _DATA.value,
        "classes": _CLASSES.value,
        "seed": seed,
        "recipe": recipe._asdict(),
    }
    # through JSON, which has lists for the recipe's tuples: the file is compared with it
    remember_fields(json.loads(json.dumps(config)), workdir)
    state, log = read_checkpoint(workdir, init_gan(recipe, pictures.images.shape[-1], seed))
    enable_compilation_cache()
    if _MINUTES.value > 0:
        state = trained(recipe, pictures, state, log)
    if _OUT.value:
        out = Path(_OUT.value)
        card = Card(
            out.stem,
            tuple(_TRAINED_ON.value or [_DATA.value]),
            _DOMAIN.value,
            _LICENCE.value,
            "trained by experiments.train_generator, see the card beside the file",
        )
        print(export(out, state, recipe, pictures, card, seed))


def check_flags() -> None:
    """Checks the flags before anything is read.

    Raises:
      ValueError, OSError: a flag is missing or wrong. One line.
    """
    if _DATA.value is None or _WORKDIR.value is None:
        raise ValueError(
            "give --data and --workdir; for example --data=fashion_mnist "
            "--workdir=checkpoints/runs/g"
        )
    channels()
    if not 0 <= _MINUTES.value < math.inf:
        raise ValueError(f"minutes are {_MINUTES.value}; they must be 0 or more")
    if _OUT.value:
        check_out(Path(_OUT.value))


def channels() -> tuple[int, ...]:
    """Returns the channels of the maps of 4, 8, 16 and 32 pixels.

    Raises:
      ValueError: they are not four integers from 1 to `WIDEST`. One line.
    """
    sizes = tuple(int(text) if text.isdecimal() else 0 for text in _CHANNELS.value)
    if len(sizes) != 4 or not all(0 < size <= WIDEST for size in sizes):
        rule = f"they must be four integers from 1 to {WIDEST}"
        raise ValueError(f"channels are {_CHANNELS.value}; {rule}")
    return sizes


def trained(recipe: Recipe, pictures: Pictures, state: GanState, log: Log) -> GanState:
    """Trains for --minutes, until --images have been seen, or until a signal arrives.

    A signal ends the program once the state is saved.
    """
    workdir = Path(_WORKDIR.value)
    end, images = time.monotonic() + 60 * _MINUTES.value, _IMAGES.value or math.inf

    def save(state: GanState, log: Log) -> None:
        write_checkpoint(workdir, state, log)
        seen = int(state.step) * recipe.batch_size
        write_samples(workdir / "samples" / f"{seen // 1000:05d}k.png", state.average)
        losses = ", ".join(f"{name} {float(value):.3f}" for name, value in state.losses.items())
        print(f"{seen} images: {losses}", flush=True)

    with catch_signals() as caught:

        def stop(step: int) -> bool:
            return bool(caught) or time.monotonic() > end or step * recipe.batch_size >= images

        state, _ = train(recipe, pictures, _SEED.value, state, log, stop, save)
    if caught:
        raise SystemExit(128 + caught[0])
    return state


def check_out(path: Path) -> None:
    """Rejects a file that could not be written after the training.

    Raises:
      ValueError, OSError: it is not an .npz, or its folder cannot be made. One line.
    """
    if path.suffix != ".npz" or path.is_dir():
        raise ValueError(f"out is {str(path)!r}; it must be a file whose name ends in .npz")
    path.parent.mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
