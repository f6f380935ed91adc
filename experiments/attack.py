r"""What an honest server learns about the clients of a run from what they send (docs/leaks.md).

    python -m experiments.attack --workdir=RUN --attack=dlg,geiping [--client=0] [--batch=1] [--noise=0,0.05] \
        [--tv=0.01,0.3] [--method=fedavg] [--csv=STEM.csv]
    python -m experiments.attack --workdir=RUN --attack=membership [--csv=STEM.csv]
    python -m experiments.attack --csv=STEM.csv

dlg and geiping play one more round of a client whose only training samples are its first --batch ones and who takes one
step, and look for images that would have been sent alike. --csv adds to a file what is found and, of inversions, writes
the images to STEM_METHOD.png; without --workdir it shows the file's table. All entries of the run count, or the one
that --method names. (What bad clients do to a federation is another thing: docs/bad_clients.md.)
"""

import csv
import functools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.method import ClientInfo, Data
from fedjax_ht.core.names import unknown
from fedjax_ht.core.round import Channel, client_context, send
from fedjax_ht.core.wire import gaussian_noise, wire_elements
from fedjax_ht.data.client_data import stack
from fedjax_ht.io.files import atomic_open
from fedjax_ht.leaks import inversion, membership
from fedjax_ht.metrics.images import psnr, ssim
from fedjax_ht.runner import plots
from fedjax_ht.runner.build import make_method
from fedjax_ht.runner.cli import fail, parse_flags
from fedjax_ht.runner.entries import as_run
from fedjax_ht.runner.evaluate import LoadedRun, client_state, load_run
from fedjax_ht.runner.run_folder import read_run

# --workdir, --method, --client and --trial are those of fedjax_ht.runner.evaluate.
_ATTACK = flags.DEFINE_list("attack", None, "dlg, geiping, membership.")
_BATCH = flags.DEFINE_integer("batch", 1, "Images of the step that is inverted, 1 to 16.")
_NOISE = flags.DEFINE_list("noise", ["0"], "Standard deviations of Gaussian noise on every number sent.")
_TV = flags.DEFINE_list("tv", ["0.01", "0.3"], "Weights of the total variation in geiping, each an inversion.")
_STEPS = flags.DEFINE_integer("adam_steps", 1000, "Steps of an inversion.")
_CSV = flags.DEFINE_string("csv", None, "File to add to, or to show.")

KINDS = ("dlg", "geiping", "membership")
NOT_NEEDED, OWN, OTHER = "is sent", "is known", "is guessed"  # what the attacker has of the client's state
SAME = 1e-6  # of `relative_square`: the client's state makes no difference


class Row(NamedTuple):
    """One result.

    Attributes:
      round, method, attack, client: of what.
      batch, tv, noise: images of the step, weight of the total variation, and deviation of the noise.
      state: the client's model is sent, known, or guessed to be another client's first one; of membership known.
      numbers: floats sent.
      psnr, ssim: means over the images of an inversion; "" of membership.
      auc: of membership; "" of inversions.
    """

    round: int
    method: str
    attack: str
    client: int
    batch: int = 0
    tv: float = 0.0
    noise: float = 0.0
    state: str = OWN
    numbers: int = 0
    psnr: float | str = ""
    ssim: float | str = ""
    auc: float | str = ""


class Inverted(NamedTuple):
    row: Row
    images: np.ndarray
    real: np.ndarray


class Case(NamedTuple):
    """A client of a run: who it is to `inversion`, its own state, another client's first one, and its training set."""

    victim: inversion.Victim
    own: inversion.PyTree
    other: inversion.PyTree
    data: Data


def arrays(tree):
    return jax.tree.map(jnp.asarray, tree)


def case(run: LoadedRun, config, client: int, trial: int, batch: int = 0) -> Case:
    """A client in its next round; with `batch`, of one step on so many samples."""
    experiment, label = run.experiment, run.method
    method, entry = experiment.methods[label], experiment.entries[label]
    own = arrays(client_state(run, client, trial))
    if batch:
        training = as_run(entry, config).training
        training.update(batch_size=batch, steps=1, shuffle=False, augmentation=())
        method = make_method(entry, training)
    federation = experiment.federations[label]
    bucket = federation.buckets[federation.assignment[client]]
    root, round = jax.random.key(config.seed + trial), jnp.int32(run.state.round)
    samples = len(experiment.partitions[trial][client].train)
    last = jnp.int32(run.state.last_round[trial][client])
    info = ClientInfo(jnp.int32(client), jnp.int32(samples), last)
    server = jax.tree.map(lambda x: jnp.asarray(x)[trial], run.state.servers)
    same = lambda key, message: message  # noqa: E731
    downlink = send(method, federation, bucket, Channel(same, same), server, root, round, info)
    neighbour = jnp.int32((client + 1) % federation.num_clients)
    first = client_context(Purpose.INIT_CLIENT, root, jnp.int32(0), info._replace(id=neighbour))
    other = method.init_client(bucket, first._replace(info=None, shared_key=None))
    parts = {name: stack([getattr(who, name) for who in experiment.partitions[trial]]) for name in ("train", "test")}
    splits = {name: jax.tree.map(lambda x: jnp.asarray(x[client]), part) for name, part in parts.items()}
    dataset = experiment.dataset
    data = Data(arrays(dataset.inputs), arrays(dataset.labels), dataset.preprocess, splits)
    return Case(inversion.Victim(method, bucket, downlink, root, round, info, data), own, other, data)


def invert(
    run: LoadedRun, config, client: int, trial: int, batch: int, noises: list[float], searches: list, steps: int
):
    """All inversions of one client's upload: yields `Inverted`.

    Raises:
      ValueError: the samples are no images, there are too few, or the method sends nothing.
    """
    if not isinstance(run.experiment.dataset.preprocess, Pixels):
        raise ValueError(f"{run.experiment.dataset.name} has no images to look for; --attack=membership takes any data")
    found = case(run, config, client, trial, batch)
    (indices, count), label = found.data.splits["train"], run.method
    if count < batch:
        raise ValueError(f"client {client} has {count} training samples, fewer than --batch={batch}")
    chosen = indices[:batch]
    images, labels = found.data.preprocess.scaled(found.data.inputs[chosen]), found.data.labels[chosen]
    real = np.asarray(images)
    ssim(real, real)  # refuses what is too small, before anything is compiled
    attacked = inversion.attack_on(found.victim, found.own, images, labels)
    nothing_lost = inversion.relative_square(attacked.simulate(found.other, images), attacked.seen) < SAME
    states = {NOT_NEEDED: found.other} if nothing_lost else {OWN: found.own, OTHER: found.other}
    sent = inversion.upload(found.victim, found.own, images, labels)
    size, key = int(wire_elements(sent).payload_elements), jax.random.fold_in(found.victim.root, Purpose.UPLINK)
    for noise in noises:
        added = inversion.payload(gaussian_noise(noise, 0.0)(key, sent), like=sent) - inversion.payload(sent)
        seen = attacked.seen + added
        for state, held in states.items():
            for name, search in searches:
                got = inversion.invert(
                    attacked.simulate, held, seen, images.shape, jax.random.key(0), search._replace(steps=steps)
                )
                best = inversion.in_order(np.asarray(got.images), real)
                scores = float(psnr(best, real).mean()), float(ssim(best, real).mean())
                about = run.state.round, label, name, client, batch, search.tv, noise, state, size
                yield Inverted(Row(*about, *scores), best, real)


def memberships(run: LoadedRun, config, trial: int) -> Iterator[Row]:
    """One row a client that has training and test samples."""
    asked = functools.partial(membership.losses, run.experiment.methods[run.method])
    losses = jax.jit(asked, static_argnames=("bucket", "split"))
    for client in range(run.experiment.federations[run.method].num_clients):
        found = case(run, config, client, trial)
        client_of = found.victim.bucket, found.own, found.victim.downlink, found.data
        each = [
            np.asarray(losses(*client_of, split=name))[: found.data.splits[name].count] for name in ("train", "test")
        ]
        value = membership.auc(*each)
        if not math.isnan(value):
            yield Row(run.state.round, run.method, "membership", client, auc=value)


def numbers(flag: str, texts: list[str]) -> list[float]:
    """A flag's numbers, at least 0, or one line."""
    try:
        found = [float(text) for text in texts]
    except ValueError:
        found = [-1.0]
    if not all(0 <= number < math.inf for number in found):
        raise ValueError(f"--{flag} is {','.join(texts)!r}; it must be numbers of at least 0, such as 0,0.05")
    return found


def add(rows: Iterable[Row], path: Path) -> None:
    """Writes the rows behind those that the file has."""
    before = read(path) if path.exists() else []
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in (*before, *rows))


def read(path: Path) -> list[Row]:
    """What `add` has written.

    Raises:
      ValueError, OSError: there is no such file, or it is of another kind. One line.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != Row._fields:
            raise ValueError(f"{path} has the columns {reader.fieldnames}; expected {', '.join(Row._fields)}")
        kinds = [type(default) if default != "" else str for default in Row(0, "", "", 0)]
        rows = [Row(*(kind(row[name]) for kind, name in zip(kinds, Row._fields))) for row in reader]
    number = lambda text: float(text) if text else ""  # noqa: E731
    return [r._replace(psnr=number(r.psnr), ssim=number(r.ssim), auc=number(r.auc)) for r in rows]


def markdown(rows: Iterable[Row]) -> str:
    """A table of inversions and one of membership, means over clients."""
    found, members = {}, {}
    for r in rows:
        if r.attack == "membership":
            members.setdefault((r.round, r.method), []).append(r.auc)
        else:
            about = (r.round, r.method, r.batch, r.numbers, r.state, f"{r.noise:g}")
            found.setdefault(about, {}).setdefault(title(r), []).append(r)
    lines, columns = [], list(dict.fromkeys(name for row in found.values() for name in row))
    if found:
        heads = ["round", "method", "images", "numbers sent", "the client's model", "noise", *columns]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for about, row in found.items():
        shown = [f"{_mean(row[c], 'psnr'):.1f} / {_mean(row[c], 'ssim'):.2f}" if c in row else "" for c in columns]
        lines.append(f"| {' | '.join(map(str, about))} | {' | '.join(shown)} |")
    if members:
        lines += ["", "| round | method | AUC, mean over clients | least | most |", "|---|---|---|---|---|"]
    for about, values in members.items():
        shown = (*about, *(f"{x:.3f}" for x in (np.mean(values), min(values), max(values))))
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(lines).strip()


def title(row: Row) -> str:
    return f"{row.attack}, tv {row.tv:g}" if row.tv else row.attack


def _mean(rows: list[Row], field: str) -> float:
    return float(np.mean([getattr(row, field) for row in rows]))


def picture(found: list[Inverted], path: Path) -> None:
    """The real images, and what each inversion found."""
    columns = {(one.row.state, one.row.noise): [] for one in found}
    for one in found:
        columns[one.row.state, one.row.noise].append(one)
    side, top = len(columns), max(map(len, columns.values()))
    figure, axes = plots.subplots(top, side + 1, squeeze=False, figsize=(1.4 * (side + 1), 1.5 * top))
    for cell in axes.flat:
        cell.axis("off")
    draw(axes[0, 0], found[0].real, "real")
    for column, ((state, noise), attacks) in zip(axes.T[1:], columns.items()):
        for cell, one in zip(column, attacks):
            about = f"{title(one.row)}\nmodel {state}, noise {noise:g}\n{one.row.psnr:.1f} dB"
            draw(cell, one.images, about)
    plots.save(figure, path)


def draw(axes, images: np.ndarray, about: str) -> None:
    """Images [B, H, W, C] side by side."""
    axes.imshow(np.concatenate(images, 1).squeeze(), cmap="gray", vmin=0, vmax=1)
    axes.set_title(about, fontsize=6)


def main(_) -> None:
    given, path = flags.FLAGS, _CSV.value and Path(_CSV.value)
    try:
        if path and not given.workdir:
            print(markdown(read(path)))
            return
        if not given.workdir or not _ATTACK.value:
            raise ValueError("give --workdir and --attack, or --csv alone; see --help")
        for kind in _ATTACK.value:
            if kind not in KINDS:
                raise ValueError(unknown("attack", kind, KINDS))
        if not 1 <= _BATCH.value <= 16:
            raise ValueError(f"--batch is {_BATCH.value}; it must be from 1 to 16")
        noises, weights = numbers("noise", _NOISE.value), numbers("tv", _TV.value)
        searches = [("dlg", inversion.DLG)] if "dlg" in _ATTACK.value else []
        if "geiping" in _ATTACK.value:
            searches += [("geiping", inversion.GEIPING._replace(tv=tv)) for tv in weights]
        config, experiment = read_run(Path(given.workdir))
        rows = []
        for label in [given.method] if given.method else experiment.methods:
            run = load_run(given.workdir, label)
            if "membership" in _ATTACK.value:
                rows += memberships(run, config, given.trial)
            if searches:
                try:
                    found = list(
                        invert(
                            run, config, given.client or 0, given.trial, _BATCH.value, noises, searches, _STEPS.value
                        )
                    )
                except ValueError as error:
                    if given.method:
                        raise
                    print(f"{label}: {error}", flush=True)
                    continue
                rows += [one.row for one in found]
                print(markdown(one.row for one in found), flush=True)
                if path:
                    picture(found, path.with_name(f"{path.stem}_{experiment.entries[label].method}.png"))
    except (ValueError, OSError, ImportError) as error:
        fail(error)
    if path:
        add(rows, path)
    print(markdown(rows))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
