"""Lists the names that a config accepts, with descriptions and options; and a config's fields.

    fedjax-ht list                    the kinds of names
    fedjax-ht list methods            all methods
    fedjax-ht list methods fedtgp     one method: its options, their values and meanings
    fedjax-ht list methods mine:fedl2g    a method of your own
    fedjax-ht list fields             all fields of a config, with their values and meanings
    fedjax-ht list fields samples     the fields with this text in name or meaning

Fields are set by --config.FIELD=VALUE; options by --config.method.options.NAME=VALUE and
--config.partition.options.NAME=VALUE.
"""

import ast
import dataclasses
import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_ht.check.docstrings import first_paragraph, meanings
from fedjax_ht.check.names import unknown
from fedjax_ht.check.options import SearchRange, describe, extra_of, hints_of
from fedjax_ht.core.inputs import InputShape, abstract
from fedjax_ht.data.partition import PARTITIONS, PLANS, partition_options
from fedjax_ht.data.partition.splits import split_plan
from fedjax_ht.lab.command import show
from fedjax_ht.lab.config.base import method_options, method_summary
from fedjax_ht.lab.config.config_files import shipped
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import plain_hint, to_plain, unknown_field
from fedjax_ht.lab.generators import SHIPPED, open_generator
from fedjax_ht.lab.readers.registry import SOURCES
from fedjax_ht.methods import METHODS, method_factory, names_user_method
from fedjax_ht.models import GROUPS, model_group
from fedjax_ht.models.registry import example

FIELDS = "fields"  # the kind that is searched by text


class Option(NamedTuple):
    """An option or a field of a config.

    Attributes:
      name: name in its section, or the whole path of a field, "training.epochs".
      default: default value, as in a config file.
      values: the valid values, in words.
      meaning: text of its entry in a docstring; "" without one.
    """

    name: str
    default: Any
    values: str
    meaning: str


class Listing(NamedTuple):
    """The description of a listed name, and its options."""

    about: str
    options: tuple[Option, ...] = ()


def methods() -> dict[str, Listing]:
    return {name: listed_method(name) for name in METHODS}


def listed_method(name: str) -> Listing:
    return Listing(method_summary(name), of_method(name))


def groups() -> dict[str, Listing]:
    entries = {}
    for name in GROUPS:
        shape, vocabulary, outputs = example(name)
        modules = model_group(name, outputs, shape, vocabulary=vocabulary)
        about = ", ".join(modules)
        if len(modules) >= 12:
            about = f"{len(modules)} of architecture and head"
        entries[name] = Listing(about)
    return entries


def models() -> dict[str, Listing]:
    entries: dict[str, Listing] = {}
    for group in GROUPS:
        shape, vocabulary, outputs = example(group)
        for name, module in model_group(group, outputs, shape, vocabulary=vocabulary).items():
            # a model with another head has the same name with the suffix _headN
            if name not in entries and "_head" not in name:
                variables = jax.eval_shape(module.init, jax.random.key(0), abstract(shape, 1))
                count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
                inputs = _inputs(shape, vocabulary)
                entries[name] = Listing(f"{count:,} parameters on {inputs}, 10 classes")
    return entries


def _inputs(shape: InputShape, vocabulary: int | None) -> str:
    """Describes the inputs of a model."""
    if vocabulary:
        return f"texts of {vocabulary:,} tokens"
    return f"{'x'.join(map(str, shape))} {'images' if len(shape) == 3 else 'windows'}"


def partitions() -> dict[str, Listing]:
    entries = {}
    for name, function in (PLANS | PARTITIONS).items():
        entries[name] = Listing(first_paragraph(function.__doc__), of_partition(name))
    return entries


def datasets() -> dict[str, Listing]:
    return {source.name: Listing(source.about) for source in SOURCES.values()}


def configs() -> dict[str, Listing]:
    entries = {}
    for path in shipped().values():
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        entries[path.stem] = Listing(first_paragraph(docstring))
    return entries


def generators() -> dict[str, Listing]:
    return {name: Listing(open_generator(name).card.domain) for name in SHIPPED}


KINDS: Mapping[str, Callable[[], dict[str, Listing]]] = {
    "methods": methods,
    "models": models,
    "groups": groups,
    "partitions": partitions,
    "datasets": datasets,
    "configs": configs,
    "generators": generators,
}


def listed(arguments: Sequence[str], width: int) -> str:
    """Returns the text of `fedjax-ht list ARGUMENTS`, in lines of at most `width` characters.

    Raises:
      ValueError: an unknown kind or name. One line.
    """
    kinds = [*KINDS, FIELDS]
    if not arguments:
        usage = "usage: fedjax-ht list KIND [NAME ...]; the kinds are"
        return "\n".join([usage, "", *(f"  {kind}" for kind in kinds)])
    kind, *names = arguments
    if kind == FIELDS:
        chosen = having(fields(), names)
        return "\n".join(option_paragraph(option, "", width) for option in chosen)
    if kind not in KINDS:
        raise ValueError(unknown("kind", kind, kinds))
    entries = KINDS[kind]()
    if kind == "methods":
        unlisted = [name for name in names if names_user_method(name) or "+" in name]
        entries |= {name: listed_method(name) for name in unlisted}
    for name in names:
        if name not in entries:
            raise ValueError(unknown(kind.removesuffix("s"), name, entries))
    column = max(map(len, entries)) + 2
    if not names:
        return "\n".join(paragraph(name, entries[name], column, width) for name in entries)
    lines = []
    for name in names:
        about, options = entries[name]
        lines.append(paragraph(name, Listing(about), column, width))
        lines += [option_paragraph(option, " " * column, width) for option in options]
    return "\n".join(lines)


def paragraph(name: str, entry: Listing, column: int, width: int) -> str:
    """Returns a name, its description from `column` on, and its options below."""
    indent = " " * column
    about = textwrap.fill(
        entry.about, width, initial_indent=name.ljust(column), subsequent_indent=indent
    )
    if not entry.options:
        return about or name
    options = ", ".join(setting(option) for option in entry.options)
    return f"{about or name}\n{filled(options, width, indent)}"


def option_paragraph(option: Option, indent: str, width: int) -> str:
    """Returns "weight=10.0  a number of at least 0", and its meaning below."""
    lines = [filled(f"{setting(option)}\0 {option.values}", width, indent)]
    if option.meaning:
        lines.append(filled(option.meaning, width, f"{indent}    "))
    return "\n".join(lines)


def setting(option: Option) -> str:
    r"""Returns "weight=10.0", with "\0" in place of spaces until lines are filled."""
    return f"{option.name}={option.default!r}".replace(" ", "\0")


def filled(text: str, width: int, indent: str) -> str:
    """Breaks a string into lines at spaces, each after `indent`."""
    lines = textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return lines.replace("\0", " ")


def of_method(name: str) -> tuple[Option, ...]:
    """Returns the options of a method, or of a method on a base such as "fedrolex+dfrd"."""
    return tuple(_of_parameters(method_options(name), meanings(method_factory(name))))


def of_partition(kind: str) -> tuple[Option, ...]:
    """Returns the options of a partition."""
    texts = meanings((PLANS | PARTITIONS)[kind])
    if kind in PLANS:
        texts = meanings(split_plan) | texts
    return tuple(_of_parameters(partition_options(kind), texts))


def fields(kind: type = Config, prefix: str = "") -> Iterator[Option]:
    """Yields the fields of a config, and of its sections as "training.epochs"."""
    texts, defaults = meanings(kind), to_plain(kind())
    for name, hint in hints_of(kind).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from fields(hint, f"{prefix}{name}.")
        else:
            values = values_text(plain_hint(hint))
            yield Option(f"{prefix}{name}", defaults[name], values, texts.get(name, ""))


def having(options: Iterable[Option], texts: Iterable[str]) -> list[Option]:
    """Returns the options whose name or meaning contains one of the texts; all without texts.

    Case is ignored.

    Raises:
      ValueError: no option contains one of the texts. One line.
    """
    options, texts, chosen = list(options), list(texts), []
    if not texts:
        return options
    for text in texts:
        matching = [o for o in options if text.lower() in f"{o.name} {o.meaning}".lower()]
        if not matching:
            names = [option.name for option in options]
            raise ValueError(unknown_field(text, names))
        chosen += matching
    return [option for option in options if option in chosen]


def _of_parameters(
    parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]
) -> Iterator[Option]:
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty:
            values = values_text(parameter.annotation)
            yield Option(name, parameter.default, values, texts.get(name, ""))


def values_text(annotation: Any) -> str:
    """Returns "a number of at least 0; a comparison searches from 0.01 to 10"."""
    text = describe(annotation)
    searched = extra_of(annotation, SearchRange)
    if searched is None:
        return text
    return f"{text}; a comparison searches from {searched.low:g} to {searched.high:g}"


def main(arguments: Sequence[str]) -> None:
    width = min(shutil.get_terminal_size((120, 0)).columns, 120)
    show(listed(arguments[1:], width))
