"""The campaign's measurements of servers: FedKTL's alignment and images, DFRD's distillation.

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
    held: int = 45,
    bar: float | None = None,
    **options,
) -> dict:
    """Measures FedKTL's alignment.

    Args:
      variant: of FedKTL.
      classes, clients: of the federation.
      held: classes that each client has prototypes of.
      bar: seconds that it may take on a GPU.
      **options: of `alignment_seconds`.
    """
    from benchmarks.fedktl_server import alignment_seconds, uploads

    sent = uploads(classes, clients, held)
    first, later = alignment_seconds(variant, sent, **options)
    result = {
        "what": f"FedKTL's alignment, {variant}, {sent.valid.sum()} prototypes",
        "compile": first - later,
    }
    result |= {"seconds": later, "bar": bar, "peak": peak_memory()}
    if bar is not None and later > bar and jax.default_backend() == "gpu":
        result["wrong"] = f"{later:.2f} s, the bar is {bar} s"
    return result


def images(shape: tuple[int, int, int], count: int = 100) -> dict:
    """Measures making images by a generator of the shipped architecture."""
    from benchmarks.fedktl_server import image_seconds

    first, later = image_seconds(tuple(shape), count)
    what = f"{count} images of {'x'.join(map(str, shape))}"
    return {"what": what, "compile": first - later, "seconds": later, "peak": peak_memory()}


def distillation(clients: int = 10, repeats: int = 3, count: bool = False, **recipe) -> dict:
    """Measures a round of DFRD's server.

    Args:
      clients: of the 4-conv CNN, each a teacher.
      repeats: timed calls.
      count: count its FLOPs instead of its seconds.
      **recipe: options of `Distillation`.
    """
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
    """Measures all teachers of DFRD's server on a batch, without and with a gradient by images."""
    from benchmarks import dfrd_server

    federation = dfrd_server.clients_of(clients)
    teachers = dfrd_server.team(federation)
    forward, with_gradient = dfrd_server.teacher_seconds(federation, teachers)
    what = f"{clients} teachers on a batch; {1e3 * with_gradient:.2f} ms with a gradient"
    return {"what": what, "seconds": forward}
