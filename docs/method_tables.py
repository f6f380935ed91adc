"""The tables of docs/methods.md: facts of the methods' docstrings, signatures and messages.

    python docs/method_tables.py    # writes them into the page

A method's module begins with "NAME (PAPER): IDEA." and an algorithm whose lines `predict:`, `up:`
and `down:` are read here; those of `up:` and `down:` are "NUMBERS: MESSAGE". Where there are such
lines, `fits:` says which federation the method is for, and `paper:` is a link. The module's
`FORMS`, if it has such, are the values that its variants give to options that default to None.
"""

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import fedjax_ht as fl
from fedjax_ht.check.options import options_of
from fedjax_ht.core.federation import with_frozen_variables
from fedjax_ht.core.inputs import abstract, usual_rule
from fedjax_ht.methods import DISTILLING
from fedjax_ht.methods.data_free.options import FORMS
from fedjax_ht.methods.shared.checking import small_federation, with_public_set

PAGE = Path(__file__).with_name("methods.md")
TITLE = re.compile(r"(?P<name>[^(:]+)( \((?P<paper>[^)]+)\))?: (?P<idea>.+)\.")
# a line of an algorithm or of a list of arguments, with the lines that continue it
ENTRY = r"^( *){}:(.*(?:\n\1 +.*)*)"
NONE = re.compile(r"None takes ((?:[^.;,()]|\.(?=\d))+)")
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Makes the tables, by name, in Markdown."""
    return {
        "papers": papers(),
        "messages": messages(),
        "fits": fits(),
        "options": options(),
        "forms": forms(),
    }


def with_tables(text: str) -> str:
    """Makes the tables of a page anew."""
    new = tables()
    return BLOCK.sub(lambda match: f"{match[1]}{new[match[2]]}{match[3]}", text)


def papers() -> str:
    """Makes the table of ideas, predictions and papers."""
    rows = []
    for name in fl.METHODS:
        title = TITLE.fullmatch(" ".join(doc_of(name).split("\n\n")[0].split()))
        paper = title["paper"] or ""
        if has_entry(name, "paper"):
            paper = f"[{paper}]({entry(name, 'paper')})"
        rows.append((f"`{name}`", title["idea"], entry(name, "predict"), paper))
    return markdown(("method", "idea", "reported prediction", "paper"), rows)


def messages() -> str:
    """Makes the table of messages, and of the numbers in them."""
    rows = []
    for name in fl.METHODS:
        numbers_up, up = entry(name, "up").split(": ", 1)
        numbers_down, down = entry(name, "down").split(": ", 1)
        method = method_of(name)
        beside = ", ".join(f"`{field}`" for field in metadata(method)) or "-"
        messages = up, numbers_up, down, numbers_down
        rows.append((f"`{name}`", *messages, beside, method.wire.server_reads))
    head = ("method", "clients send", "numbers", "clients are sent", "numbers", "metadata")
    return markdown((*head, "the server reads"), rows)


def fits() -> str:
    """Makes the table of the federations that methods are for, of those that say so."""
    names = [name for name in fl.METHODS if has_entry(name, "fits")]
    return markdown(("method", "fits"), [(f"`{name}`", entry(name, "fits")) for name in names])


def options() -> str:
    """Makes the table of options and their defaults."""
    rows = []
    for name in fl.METHODS:
        parameters = list(options_of(fl.METHODS[name]).values())[1:]
        texts = [f"`{p.name}={shown(p.default)}`{meaning(name, p)}" for p in parameters]
        rows.append((f"`{name}`", ", ".join(texts) or "-"))
    return markdown(("method", "options"), rows)


def forms() -> str:
    """Makes the table of the values that variants give to DFRD's, DENSE's and FedFTG's options."""
    rows = []
    for option in FORMS["paper"]:
        owners = [name for name in DISTILLING if defaults(name).get(option, ()) is None]
        text = "all" if len(owners) == len(DISTILLING) else ", ".join(f"`{n}`" for n in owners)
        values = [f"`{shown(FORMS[variant][option])}`" for variant in FORMS]
        rows.append((f"`{option}`", text, *values))
    return markdown(("option", "of", *FORMS), rows)


def doc_of(name: str) -> str:
    """Returns the docstring of a method's module."""
    return sys.modules[inspect.unwrap(fl.METHODS[name]).__module__].__doc__


def has_entry(name: str, key: str) -> bool:
    """Returns whether a method's algorithm has a line."""
    return re.search(ENTRY.format(key), doc_of(name), re.MULTILINE) is not None


def entry(name: str, key: str) -> str:
    """Returns a line of a method's algorithm."""
    match = re.search(ENTRY.format(key), doc_of(name), re.MULTILINE)
    if match is None:
        raise ValueError(f"the algorithm of {name} has no line {key!r}")
    return " ".join(match[2].split())


def defaults(name: str) -> dict[str, Any]:
    """Returns the options of a method with their defaults."""
    return {p.name: p.default for p in options_of(fl.METHODS[name]).values()}


def shown(value: Any) -> str:
    """Writes a value as Python does, with double quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))}{',' if len(value) == 1 else ''})"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def meaning(name: str, option: inspect.Parameter) -> str:
    """Writes in brackets what a default of None stands for, by `FORMS` or the docstring."""
    if option.default is not None:
        return ""
    values = getattr(sys.modules[inspect.unwrap(fl.METHODS[name]).__module__], "FORMS", {})
    if values and option.name in values["paper"]:
        paper, released = (shown(form[option.name]) for form in values.values())
        return f" ({paper}; released {released})"
    text = re.search(ENTRY.format(option.name), inspect.getdoc(fl.METHODS[name]), re.MULTILINE)
    meant = NONE.search(" ".join(text[0].split())) if text else None
    return f" ({meant[1]})" if meant else ""


def method_of(name: str) -> fl.Method:
    """Makes a method with its defaults."""
    return fl.METHODS[name](fl.LocalTraining(optax.sgd(0.1), batch_size=4))


def metadata(method: fl.Method) -> list[str]:
    """Returns the fields of a method's messages that are metadata, traced in a tiny federation."""
    federation = federation_for(method)
    bucket = federation.buckets[0]

    def both(key):
        split = fl.Split(jnp.arange(4), jnp.int32(4))
        form = abstract(bucket.input_shape, 4)
        inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)
        rule = usual_rule(bucket.input_shape)
        splits = {"train": split, "public": split}
        data = fl.Data(inputs, jnp.zeros(4, jnp.int32), rule, splits, jnp.int32(0))
        info = fl.ClientInfo(jnp.int32(0), jnp.int32(4), jnp.int32(-1))
        ctx = fl.Context(key, jnp.int32(0), info, shared_key=key)
        server = method.init_server(federation, key)
        downlink = method.broadcast(federation, bucket, server, ctx)
        client = method.receive(bucket, method.init_client(bucket, ctx), downlink, data, ctx)
        return method.client_update(bucket, client, downlink, data, ctx)[1], downlink

    traced = jax.eval_shape(both, jax.random.key(0))
    leaves = jax.tree.leaves_with_path(traced, is_leaf=lambda x: isinstance(x, fl.Metadata))
    names = [path[-1].name for path, leaf in leaves if isinstance(leaf, fl.Metadata)]
    return list(dict.fromkeys(names))


def federation_for(method: fl.Method) -> fl.Federation:
    """Makes a tiny federation that a method takes."""
    for make in (small_federation, adapted_network):
        federation = with_public_set(make(), method)
        try:
            method.check(federation)
        except ValueError:
            continue
        return federation
    return one_network()


def adapted_network() -> fl.Federation:
    """Makes a federation for methods that exchange low-rank adapters."""
    models = {f"rank{rank}": fl.models.lora(fl.mlp(3, (8,)), rank) for rank in (1, 2)}
    federation = fl.make_federation(models, (4, 4, 1), 3, num_clients=2)
    return with_frozen_variables(federation)


def one_network() -> fl.Federation:
    """Makes a federation for methods that need one architecture, or slices of a network."""
    network = fl.sliced_network("conv4_quarter", 3, (16, 16, 1))
    return fl.make_sliced_federation(network, (1.0, 1.0), (16, 16, 1), 3)


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Writes a table in Markdown."""
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
