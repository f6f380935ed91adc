r"""Compiles rounds of clients for a described GPU: kernels, graphs, memory, time to compile.

    python -m benchmarks.gpu_aot [--groups=cnn4,resnet18,cnn5] [--lanes=3,9] \
        [--out=benchmarks/results/gpu_aot_h100.md]
    python -m benchmarks.gpu_aot --methods=all --out=benchmarks/results/gpu_aot_methods_h100.md

FedTGP's training, 32x32x3, batches of 10, compiled for a device that benchmarks/h100.txtpb
describes; a group of several architectures is one program. With --methods the methods' own, of a
small CNN or, where clients train slices, of slices of whole and half its width.

Needs one of jax's CUDA plugins (pip install "jax[cuda12]" or "jax[cuda13]"; of the libraries that
these bring, the compiler alone: nvidia-cuda-nvcc-cu12, or nvidia-cuda-nvcc and nvidia-nvvm), and no
GPU. Without a device there is no autotuning, so that a real one may take other kernels for its
products; how many there are, in which loops and graphs, and how much memory they take is what this
tells. The estimate of a step's time is arithmetic.
"""

import importlib.metadata
import importlib.util
import json
import os
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from absl import app, flags
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from benchmarks.gpu_programs import BATCH, SHAPE, federation_of, method_of, program, small_group
from benchmarks.report import in_a_process, machine, number, publish, table
from benchmarks.thunks import loop_turns, loops, read_thunks, step_bytes, steps_of
from fedjax_ht.core.compiling import buckets_on_mesh
from fedjax_ht.core.mesh import AXIS, REPLICATED, SHARDED
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.cli import fail, parse_flags
from fedjax_ht.methods import METHODS
from fedjax_ht.metrics.flops import sample_flops

TARGET = Path(__file__).parent / "h100.txtpb"
# of an H100's data sheet, and what a kernel of a CUDA graph was thought to cost (1.4e-6 s when it
# was measured, see results/gpu_h100.md)
LAUNCH, BANDWIDTH, ARITHMETIC = 2.5e-6, 3.35e12, 67e12
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
    """Makes a mesh of one GPU that is described, not present."""
    known = jax._src.xla_bridge.canonicalize_platform
    # jax takes "gpu" for what is present; here nothing is.

    def canonicalize(name):
        return "cuda" if name in ("gpu", "cuda") else known(name)

    jax._src.xla_bridge.canonicalize_platform = canonicalize
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET.read_text(), topology="1x1x1"
    )
    return Mesh(np.array(topology.devices), (AXIS,))


def measure(name: str, group: str, lanes: int, what: str, folder: str) -> dict:
    """Compiles a method's "training" or "scoring" of a round in this process.

    Args:
      name: of the method.
      group: of models; "" takes the first of `SMALL` that the method runs on.
      lanes: clients side by side.
      what: "training" or "scoring".
      folder: where XLA writes its listings.
    """
    mesh, group = described_mesh(), group or small_group(name)
    federation = federation_of(group, lanes)
    runs, (states, schedules, *rest) = program(method_of(name), federation, lanes, what)

    def placed(tree: PyTree, spec) -> PyTree:
        at = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), tree)

    rest = [placed(x, REPLICATED) for x in rest]
    start = time.perf_counter()
    # Functions ask for the backend to suit the device.
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        step = buckets_on_mesh(runs, mesh, donate=what == "training")
        lowered = step.lower(placed(states, SHARDED), placed(schedules, SHARDED), *rest)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    # The longest listing is the program's, after the passes that put it into graphs.
    listings = sorted(
        Path(folder).glob("*thunk_sequence*.txt"), key=lambda path: path.stat().st_size
    )
    nodes = read_thunks(listings[-1].read_text())
    all_loops = loops(nodes, loop_turns(compiled.as_text()))
    outermost, steps = [loop for loop in all_loops if loop.depth == 0], steps_of(all_loops)
    return {
        "group": group,
        "kernels": [len(loop.body) for loop in steps],
        "copies": [Counter(node.kind for node in loop.body)["Copy"] for loop in steps],
        "graphs": sum(node.depth == 0 and node.kind == "CommandBuffer" for node in nodes),
        "outside": sum(node.depth == 0 and node.kind != "CommandBuffer" for node in nodes),
        "graphed": all(loop.graphed for loop in all_loops),
        "branches": len(outermost),
        "starts": len({loop.after for loop in outermost}),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
        "bytes": step_bytes(compiled.as_text()),
        "flops": sum(lanes * BATCH * sample_flops(b) for b in federation.buckets),
        "lower": traced - start,
        "compile": done - traced,
    }


def in_a_child(name: str, group: str, lanes: int, what: str) -> dict:
    """Runs `measure` in a process of its own: XLA's flags, which name its folder, hold for one."""
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
    """Returns a row's cells by column."""
    training, scoring = (in_a_child(name, group, lanes, what) for what in ("training", "scoring"))
    kernels = sum(training["kernels"])
    return {
        "method": name,
        "group": training["group"],
        "lanes": str(lanes),
        "kernels a step": " + ".join(map(str, training["kernels"])),
        "of them copies": str(sum(training["copies"])),
        "one graph": one_graph(training),
        "scoring, too": one_graph(scoring),
        "temporary MiB": number(training["temporary"] / 2**20),
        "MiB a step": number(training["bytes"] / 2**20),
        "GFLOP a step": number(training["flops"] / 1e9),
        "launch ms": number(1e3 * kernels * LAUNCH),
        "memory ms": number(1e3 * training["bytes"] / BANDWIDTH),
        "arithmetic ms": number(1e3 * training["flops"] / ARITHMETIC),
        "seconds to compile": number(training["lower"] + training["compile"]),
    }


def one_graph(figures: dict) -> str:
    """Returns whether a program is one CUDA graph, and how many loops in it run side by side."""
    if not figures["graphed"] or figures["graphs"] != 1 or figures["outside"]:
        return f"no, {figures['graphs']}"
    return f"yes, {figures['branches']} abreast" if figures["starts"] == 1 else "yes"


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
    title = "Methods' client rounds" if names else "FedTGP's client round"
    title += f", compiled for an NVIDIA H100 that was not there; batch {BATCH}, {SHAPE}. "
    title += f"{plugin} {importlib.metadata.version(plugin)}. "
    head = OF_METHODS
    if not names:
        title += f"Milliseconds are estimates, a step, at {LAUNCH * 1e6:.1f} us a kernel, "
        title += f"{BANDWIDTH / 1e12:.2f} TB/s and {ARITHMETIC / 1e12:.0f} TFLOP/s. "
        head = [column for column in rows[0] if column != "method"]
    lines = [[cells[column] for column in head] for cells in rows]
    publish(f"{title}{machine()}\n\n{table(head, lines)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
