"""Converts a StyleGAN3 or StyleGAN-XL snapshot, once, to a .npz that holds the generator only.

    python -m fedjax_ht.lab.generators.convert FILE.pkl OUT.npz --trained_on=ffhq --domain=faces
    --licence=... --name=...

The flags may be left out.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from fedjax_ht.lab.generators.stylegan3_files import read_snapshot, save_converted, snapshot_card
from fedjax_ht.models.generator import Card


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; a mistake ends in one line and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m fedjax_ht.lab.generators.convert",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("file", help="the .pkl snapshot")
    parser.add_argument("out", help="the .npz to write")
    parser.add_argument("--name", help="name in tables and messages; by default the snapshot's")
    parser.add_argument(
        "--trained_on", help="names of data sets, with commas; federations on these refuse it"
    )
    parser.add_argument("--domain", help="things that its images show, such as faces")
    parser.add_argument("--licence", help="licence of the weights")
    parser.error = _fail  # one line, without the usage
    chosen = parser.parse_args(arguments)
    try:
        if not chosen.out.endswith(".npz"):
            raise ValueError(f"{chosen.out}: the converted file must end in .npz")
        network, variables = read_snapshot(chosen.file)
        save_converted(
            chosen.out, network, variables, _card(snapshot_card(chosen.file, network), chosen)
        )
    except (ValueError, OSError) as error:
        _fail(str(error))
    print(f"written: {chosen.out}, {network.family}, {len(variables)} arrays")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _card(card: Card, chosen: argparse.Namespace) -> Card:
    """Returns the card with the values of the flags."""
    fields = {}
    for name in ("name", "domain", "licence"):
        if getattr(chosen, name) is not None:
            fields[name] = getattr(chosen, name)
    if chosen.trained_on is not None:
        fields["trained_on"] = tuple(filter(None, chosen.trained_on.split(",")))
    return card._replace(**fields)


if __name__ == "__main__":
    main()
