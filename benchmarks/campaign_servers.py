"""What the campaign measures of servers: FedKTL's alignment and images, DFRD's distillation.

Their benchmarks define flags of the same name: each is imported where it runs, in a process of its
own.
"""

import dataclasses

import jax

from benchmarks.report import peak_memory


def alignment(
    variant: str,
    classes: int = 100,
    clients: int = 20,
    own: int = 45,
    bar: float | None = None,
    **options,
) -> dict:
    """FedKTL's, with prototypes of so many own classes of each client; `bar` is what it may take on
    a GPU, in s."""
    from benchmarks.fedktl_server import alignment_seconds, uploads

    sent = uploads(classes, clients, own)
    first, later = alignment_seconds(variant, sent, **options)
    found = {
        "what": f"FedKTL's alignment, {variant}, {sent.valid.sum()} prototypes",
        "compile": first - later,
    }
    found |= {"seconds": later, "bar": bar, "peak": peak_memory()}
    if bar is not None and later > bar and jax.default_backend() == "gpu":
        found["wrong"] = f"{later:.2f} s, the bar is {bar} s"
    return found


def images(shape: tuple[int, int, int], count: int = 100) -> dict:
    """Of the shipped generator's architecture."""
    from benchmarks.fedktl_server import image_seconds

    first, later = image_seconds(tuple(shape), count)
    what = f"{count} images of {'x'.join(map(str, shape))}"
    return {"what": what, "compile": first - later, "seconds": later, "peak": peak_memory()}


def distillation(clients: int = 10, repeats: int = 3, count: bool = False, **recipe) -> dict:
    """A round of DFRD's server, with these of `Distillation`'s options: its FLOPs, where they are
    to be counted, or seconds."""
    from benchmarks import dfrd_server

    recipe = dataclasses.replace(dfrd_server.RECIPE, **recipe)
    step, args = dfrd_server.round_of(dfrd_server.clients_of(clients), recipe)
    what = f"DFRD's distillation, {clients} teachers, A = {recipe.iterations}, "
    what += f"batch {recipe.batch_size}"
    if count:
        return {"what": what, "flops": dfrd_server.round_flops(step, args)}
    compiling, seconds = dfrd_server.round_seconds(step, args, repeats)
    return {"what": what, "compile": compiling, "seconds": seconds, "peak": peak_memory()}


def teachers(clients: int = 10) -> dict:
    """Of DFRD's server: all teachers about a batch, with and without a gradient by the images."""
    from benchmarks import dfrd_server

    federation = dfrd_server.clients_of(clients)
    told, led = dfrd_server.teacher_seconds(federation, dfrd_server.team(federation))
    return {
        "what": f"{clients} teachers asked; {1e3 * led:.2f} ms with a gradient",
        "seconds": told,
    }
