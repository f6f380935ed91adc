"""What XLA makes of a round of clients on a GPU, asked without one: kernels, graphs, memory, time
to compile.

    python -m benchmarks.gpu_aot [--groups=cnn4,resnet18,cnn5] [--lanes=3,9]
    [--out=benchmarks/results/gpu_aot_h100.md] python -m benchmarks.gpu_aot --methods=all
    --out=benchmarks/results/gpu_aot_methods_h100.md

FedTGP's training, 32x32x3, batches of 10, compiled for a device that benchmarks/h100.txtpb
describes; a group of several architectures is one program. With --methods it is theirs, of a small
CNN or, where clients train slices, of slices of whole and half its width. Needs one of jax's CUDA
plugins (pip install "jax[cuda12]" or "jax[cuda13]"; of the libraries that these bring, the compiler
alone: nvidia-cuda-nvcc-cu12, or nvidia-cuda-nvcc and nvidia-nvvm), and no GPU. Without a device
  there is no autotuning, so that a real one may take other kernels for its products; how many there
are, in which loops and graphs, and how much memory they take is what this tells. The estimate of a
step's time is arithmetic.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from benchmarks.report import in_a_process, machine, number, publish, table
from benchmarks.thunks import loop_turns, loops, read_thunks, step_bytes, steps_of
from fedjax_ht.core import wire
from fedjax_ht.core.compiling import buckets_on_mesh
from fedjax_ht.core.evaluation import Asked, bucket_evaluation, client_evaluation
from fedjax_ht.core.executor import Schedule
from fedjax_ht.core.federation import Bucket, Federation, make_federation, make_sliced_federation
from fedjax_ht.core.forms import keeps_state
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.mesh import AXIS, REPLICATED, SHARDED
from fedjax_ht.core.method import ClientInfo, Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, Participant, TrialServers, any_state, bucket_round
from fedjax_ht.methods import METHODS
from fedjax_ht.metrics.flops import sample_flops
from fedjax_ht.models import SLICED, model_group, sliced_network
from fedjax_ht.runner.cli import fail, parse_flags
from fedjax_ht.simulation.lanes import H100

SHAPE, CLASSES, BATCH, IMAGES, SCORED = (32, 32, 3), 10, 10, 50_000, 64
TARGET = Path(__file__).parent / "h100.txtpb"
OF_METHODS = (
    "method",
    "group",
    "kernels a step",
    "one graph",
    "scoring, too",
    "temporary MiB",
    "seconds to compile",
)
# Plugin -> folder of its CUDA compiler, as NVIDIA's packages have it.
PLUGINS = {"jax_cuda12_plugin": "nvidia/cuda_nvcc", "jax_cuda13_plugin": "nvidia/cu13"}
SMALL = ("cnn4", "conv4")  # methods run on the first of them that they fit
GROUPS = (
    "cnn4",
    "resnet18",
    "resnet34",
    "mobilenet_v2",
    "googlenet",
    "resnet50",
    "resnet101",
    "resnet152",
    "cnn5",
)

_GROUPS = flags.DEFINE_list(
    "groups", list(GROUPS), "Model groups; those of several architectures are one program."
)
_METHODS = flags.DEFINE_list(
    "methods", [], "Instead of groups: these methods, or all.", allow_override=True
)
_LANES = flags.DEFINE_list("lanes", ["3"], "Clients side by side.")
_MEASURE = flags.DEFINE_string(
    "measure", None, "Of the child: METHOD:GROUP:LANES:WHAT:FOLDER, whose JSON is printed."
)


def cuda_plugin() -> str | None:
    """Returns the name of the installed plugin, of two the first of `PLUGINS`, or None."""
    return next((name for name in PLUGINS if importlib.util.find_spec(name)), None)


def described_mesh() -> Mesh:
    """One GPU that is not there."""
    known = jax._src.xla_bridge.canonicalize_platform
    # jax takes "gpu" for what is present; here nothing is.
    jax._src.xla_bridge.canonicalize_platform = lambda name: (
        "cuda" if name in ("gpu", "cuda") else known(name)
    )
    found = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET.read_text(), topology="1x1x1"
    )
    return Mesh(np.array(found.devices), (AXIS,))


def arguments(method: Method, bucket: Bucket, clients: int, keeps: bool):
    """Shapes of a bucket's (states, schedule, data); of clients that keep nothing the states are
    ()."""
    shape = jax.ShapeDtypeStruct
    key = jax.eval_shape(lambda: jax.random.key(0))
    one = jax.eval_shape(lambda k: any_state(method, bucket, k), key) if keeps else ()
    states = jax.tree.map(lambda x: shape((clients, *x.shape), x.dtype), one)
    ids, flags = shape((clients,), jnp.int32), shape((clients,), bool)
    schedule = Schedule(
        ids, Participant(ids, ids, ClientInfo(ids, ids, ids), flags, flags), shape((1,), jnp.int32)
    )
    split = Split(shape((clients, 2000), jnp.int32), ids)
    splits = {"train": split, "test": split}
    channels = shape((SHAPE[-1],), jnp.float32)
    data = Data(
        shape((IMAGES, *SHAPE), jnp.uint8),
        shape((IMAGES,), jnp.int32),
        Pixels(channels, channels),
        splits,
    )
    return states, schedule, data


def federation_of(group: str, lanes: int) -> Federation:
    """Two chunks of clients an architecture."""
    if group in SLICED:
        return make_sliced_federation(
            sliced_network(group, CLASSES, SHAPE), (1.0, 0.5) * 2 * lanes, SHAPE, CLASSES
        )
    modules = model_group(group, CLASSES, SHAPE)
    return make_federation(modules, SHAPE, CLASSES, num_clients=2 * lanes * len(modules))


def method_of(name: str) -> Method:
    return METHODS[name](LocalTraining(optax.sgd(0.01), batch_size=BATCH))


def small_group(name: str) -> str:
    """The first of `SMALL` that a method runs on."""
    for group in SMALL:
        with contextlib.suppress(ValueError):
            method_of(name).check(federation_of(group, 1))
            return group
    raise ValueError(f"method {name!r} runs on none of {', '.join(SMALL)}")


def program(
    method: Method, federation: Federation, lanes: int, what: str
) -> tuple[dict[str, Callable], tuple[PyTree, ...]]:
    """A bucket's functions of the "training" or "scoring" of a round, as `simulation.program.bind`
    makes them.

    Returns:
      bucket name -> function of (states, schedule, servers, data, when), and the shapes of these
      five, the first two and the data by bucket.
    """
    channel = Channel(wire.chain(()), wire.chain(()))
    runs, each = {}, {}
    for bucket in federation.buckets:
        bound = method, federation, bucket, channel
        keeps = keeps_state(*bound)
        # Clients that keep nothing are scored in the program that trains them.
        train = bucket_round(*bound, lanes, None if keeps else client_evaluation(*bound, SCORED))
        runs[bucket.name] = (
            train if what == "training" else bucket_evaluation(*bound, lanes, SCORED, keeps)
        )
        each[bucket.name] = arguments(method, bucket, 2 * lanes, keeps)
    states, schedules, data = ({name: own[i] for name, own in each.items()} for i in range(3))
    key = jax.eval_shape(lambda: jax.random.key(0))
    server = jax.eval_shape(lambda k: method.init_server(federation, k), key)
    servers = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), server)
    servers = TrialServers(servers, jax.ShapeDtypeStruct((1,), jnp.uint32))
    round, flag = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), bool)
    return runs, (states, schedules, servers, data, (round, Asked(flag, {"test": flag})))


def measure(name: str, group: str, lanes: int, what: str, folder: str) -> dict:
    """Compiles a method's "training" or "scoring" of a round, with a group of models or what it
    fits of `SMALL`, in this process."""
    mesh, group = described_mesh(), group or small_group(name)
    federation = federation_of(group, lanes)
    runs, (states, schedules, *rest) = program(method_of(name), federation, lanes, what)

    def placed(tree: PyTree, spec) -> PyTree:
        at = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), tree)

    rest = [placed(x, REPLICATED) for x in rest]
    start = time.perf_counter()
    # what functions ask that suit the device
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        step = buckets_on_mesh(runs, mesh, donate=what == "training")
        lowered = step.lower(placed(states, SHARDED), placed(schedules, SHARDED), *rest)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    # The longest is the program, by passes that put it into graphs where there were any.
    listings = sorted(
        Path(folder).glob("*thunk_sequence*.txt"), key=lambda path: path.stat().st_size
    )
    nodes = read_thunks(listings[-1].read_text())
    every = loops(nodes, loop_turns(compiled.as_text()))
    outermost, steps = [loop for loop in every if loop.depth == 0], steps_of(every)
    return {
        "group": group,
        "kernels": [len(loop.body) for loop in steps],
        "copies": [Counter(node.kind for node in loop.body)["Copy"] for loop in steps],
        "graphs": sum(node.depth == 0 and node.kind == "CommandBuffer" for node in nodes),
        "outside": sum(node.depth == 0 and node.kind != "CommandBuffer" for node in nodes),
        "graphed": all(loop.graphed for loop in every),
        "branches": len(outermost),
        "starts": len({loop.after for loop in outermost}),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
        "bytes": step_bytes(compiled.as_text()),
        "flops": sum(lanes * BATCH * sample_flops(b) for b in federation.buckets),
        "lower": traced - start,
        "compile": done - traced,
    }


def in_a_child(name: str, group: str, lanes: int, what: str) -> dict:
    """XLA's flags, which say where it writes what it compiled, hold for a whole process."""
    compiler = Path(sysconfig.get_paths()["purelib"], PLUGINS[cuda_plugin()])
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
            "JAX_PLATFORMS": "cpu,cuda",
            "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={compiler} "
            f"--xla_dump_to={folder}",
        }
        return in_a_process(
            "benchmarks.gpu_aot", [f"--measure={name}:{group}:{lanes}:{what}:{folder}"]
        )


def row(name: str, group: str, lanes: int) -> dict[str, str]:
    found, scoring = (in_a_child(name, group, lanes, what) for what in ("training", "scoring"))
    kernels = sum(found["kernels"])
    return {
        "method": name,
        "group": found["group"],
        "lanes": str(lanes),
        "kernels a step": " + ".join(map(str, found["kernels"])),
        "of them copies": str(sum(found["copies"])),
        "one graph": one_graph(found),
        "scoring, too": one_graph(scoring),
        "temporary MiB": number(found["temporary"] / 2**20),
        "MiB a step": number(found["bytes"] / 2**20),
        "GFLOP a step": number(found["flops"] / 1e9),
        "launch ms": number(1e3 * kernels * H100.launch),
        "memory ms": number(1e3 * found["bytes"] / H100.bandwidth),
        "arithmetic ms": number(1e3 * found["flops"] / H100.arithmetic),
        "seconds to compile": number(found["lower"] + found["compile"]),
    }


def one_graph(found: dict) -> str:
    if not found["graphed"] or found["graphs"] != 1 or found["outside"]:
        return f"no, {found['graphs']}"
    return f"yes, {found['branches']} abreast" if found["starts"] == 1 else "yes"


def main(_) -> None:
    if _MEASURE.value:
        name, group, lanes, what, folder = _MEASURE.value.split(":")
        print(json.dumps(measure(name, group, int(lanes), what, folder)))
        return
    plugin = cuda_plugin()
    if plugin is None:
        fail(ValueError("no CUDA plugin of jax; run pip install 'jax[cuda12]', or 'jax[cuda13]'"))
    names = list(METHODS) if _METHODS.value == ["all"] else _METHODS.value
    cases = [(name, "") for name in names] or [("fedtgp", group) for group in _GROUPS.value]
    rows = []
    for name, group in cases:
        for lanes in map(int, _LANES.value):
            rows.append(row(name, group, lanes))
            print(*rows[-1].values(), flush=True)
    what = "Methods' client rounds" if names else "FedTGP's client round"
    what += f", compiled for an NVIDIA H100 that was not there; batch {BATCH}, {SHAPE}. "
    what += f"{plugin} {importlib.metadata.version(plugin)}. "
    if not names:
        what += f"Milliseconds are estimates, a step, at {H100.launch * 1e6:.1f} us a kernel, "
        what += f"{H100.bandwidth / 1e12:.2f} TB/s and {H100.arithmetic / 1e12:.0f} TFLOP/s. "
    head = OF_METHODS if names else [column for column in rows[0] if column != "method"]
    lines = ([cells[column] for column in head] for cells in rows)
    publish(f"{what}{machine()}\n\n{table(head, lines)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
