"""Says what there is to choose from, and the options of each.

    fedjax-ht list                    what can be listed
    fedjax-ht list methods            each with one line and its options
    fedjax-ht list methods fedtgp     one of them alone

Options are set by --config.method.options.NAME=VALUE and --config.partition.options.NAME=VALUE.
"""

import ast
import importlib
import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax

from fedjax_ht.configs import shipped
from fedjax_ht.core.inputs import InputShape, abstract
from fedjax_ht.core.names import unknown
from fedjax_ht.data.partition import PARTITIONS, PLANS, partition_options
from fedjax_ht.data.sources.registry import SOURCES
from fedjax_ht.generators import SHIPPED, open_generator
from fedjax_ht.methods import METHODS
from fedjax_ht.models import GROUPS, model_group
from fedjax_ht.models.registry import example
from fedjax_ht.runner.cli import fail


class Entry(NamedTuple):
    """What is said of a name: one line, and its options, "weight=10.0"."""

    about: str
    options: tuple[str, ...] = ()


def methods() -> dict[str, Entry]:

    def entry(name: str, factory: Callable) -> Entry:
        module = importlib.import_module(inspect.unwrap(factory).__module__)
        return Entry(
            first_paragraph(module),
            options_of(list(inspect.signature(factory).parameters.values())[1:]),
        )

    return {name: entry(name, factory) for name, factory in METHODS.items()}


def groups() -> dict[str, Entry]:

    def entry(name: str) -> Entry:
        shape, vocabulary = example(name)
        modules = model_group(name, 10, shape, vocabulary=vocabulary)
        return Entry(
            ", ".join(modules) if len(modules) < 12 else f"{len(modules)} of architecture and head"
        )

    return {name: entry(name) for name in GROUPS}


def models() -> dict[str, Entry]:

    found: dict[str, Entry] = {}
    for group in GROUPS:
        shape, vocabulary = example(group)
        for name, module in model_group(group, 10, shape, vocabulary=vocabulary).items():
            if name not in found and "_head" not in name:
                variables = jax.eval_shape(module.init, jax.random.key(0), abstract(shape, 1))
                count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
                kind = {
                    1: f"texts of {vocabulary or 0:,} tokens",
                    2: "128x9 windows",
                    3: "32x32x3 images",
                }
                found[name] = Entry(
                    f"{count:,} parameters on {kind[len(shape.shape if vocabulary else shape)]}, "
                    "10 classes"
                )
    return found


def _samples(shape: InputShape, vocabulary: int | None) -> str:
    """What a model takes, in words."""
    if vocabulary:
        return f"texts of {vocabulary:,} tokens"
    return f"{'x'.join(map(str, shape))} {'images' if len(shape) == 3 else 'windows'}"


def partitions() -> dict[str, Entry]:

    kinds = PLANS | PARTITIONS
    return {
        name: Entry(first_paragraph(kinds[name]), options_of(partition_options(name).values()))
        for name in kinds
    }


def datasets() -> dict[str, Entry]:

    return {source.title: Entry(source.about) for source in SOURCES.values()}


def configs() -> dict[str, Entry]:

    return {path.stem: Entry(first_paragraph(path.read_text())) for path in shipped().values()}


def generators() -> dict[str, Entry]:

    return {name: Entry(open_generator(name).card.domain) for name in SHIPPED}


KINDS: Mapping[str, Callable[[], dict[str, Entry]]] = {
    "methods": methods,
    "models": models,
    "groups": groups,
    "partitions": partitions,
    "datasets": datasets,
    "configs": configs,
    "generators": generators,
}


def first_paragraph(thing: object) -> str:
    """Of a docstring, or of a source's text."""
    text = ast.get_docstring(ast.parse(thing)) if isinstance(thing, str) else inspect.getdoc(thing)
    return " ".join((text or "").split("\n\n")[0].split())


def options_of(parameters: Iterable[inspect.Parameter]) -> tuple[str, ...]:
    return tuple(f"{p.name}={p.default!r}" for p in parameters if p.default is not p.empty)


def told(words: Sequence[str], width: int) -> str:
    """What `fedjax-ht list WORDS` says.

    Raises:
      ValueError: an unknown kind or name. One line.
    """
    if not words:
        return "\n".join(
            [
                "usage: fedjax-ht list KIND [NAME ...]; the kinds are",
                "",
                *(f"  {kind}" for kind in KINDS),
            ]
        )
    kind, *names = words
    if kind not in KINDS:
        raise ValueError(unknown("kind", kind, KINDS))
    found = KINDS[kind]()
    for name in names:
        if name not in found:
            raise ValueError(unknown(kind.removesuffix("s"), name, found))
    column = max(map(len, found)) + 2
    return "\n".join(paragraph(name, found[name], column, width) for name in names or found)


def paragraph(name: str, entry: Entry, column: int, width: int) -> str:
    """A name, what is said of it beside it, and its options below."""
    indent = " " * column
    about = textwrap.fill(
        entry.about, width, initial_indent=name.ljust(column), subsequent_indent=indent
    )
    # Options are not broken at their own spaces.
    options = ", ".join(option.replace(" ", "\0") for option in entry.options)
    options = textwrap.fill(
        options, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return (about or name) + (f"\n{options}" if entry.options else "").replace("\0", " ")


def main(arguments: Sequence[str]) -> None:
    try:
        print(told(arguments[1:], min(shutil.get_terminal_size((120, 0)).columns, 120)))
    except ValueError as error:
        fail(error)
