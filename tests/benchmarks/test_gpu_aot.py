"""Tests of reading a program that XLA compiled for a GPU: a listing by hand, and a real one where
the plugin is."""

import importlib.util
import subprocess
import sys

import jax
import pytest

from benchmarks import gpu_aot
from benchmarks.thunks import bytes_of, loop_turns, loops, read_thunks, step_bytes, steps_of
from fedjax_ht.core.compiling import on_mesh
from fedjax_ht.core.mesh import client_mesh

LISTING = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source       | next=002 (1)] loop_broadcast_fusion grid: [1, 1, 1] threads: [6, 1, 1]
    002: kWhile        [prev=001 (1) | sink        ]
condition:
        003: kCustomKernel [source | sink] wrapped_compare grid: [1, 1, 1] threads: [1, 1, 1]
      body:
        004: kCustomKernel [source       | next=005 (1)] loop_gather_fusion_8 grid: [1, 1, 1] threads: [30, 1, 1]
        005: kWhile        [prev=004 (1) | next=009 (1)]
condition:
            006: kCustomKernel [source | sink] loop_reduce_fusion grid: [1, 1, 1] threads: [1, 1, 1]
          body:
            007: kCustomKernel [source       | next=008 (1)] gemm_fusion_dot_1 grid: [1, 1, 1] threads: [1, 1, 1]
            008: kCopy         [prev=007 (1) | sink        ] kCopy
        009: kCustomKernel [prev=005 (1) | sink        ] loop_and_fusion grid: [1, 1, 1] threads: [1, 1, 1]
    010: kWhile        [prev=001 (2) | sink        ]
condition:
        011: kCustomKernel [source | sink] wrapped_compare_1 grid: [1, 1, 1] threads: [1, 1, 1]
      body:
        012: kCustomKernel [source | sink] loop_add_fusion grid: [1, 1, 1] threads: [1, 1, 1]
013: kWhile [prev=000 (1) | sink        ]
condition:
    014: kCustomKernel [source | sink] wrapped_compare_2 grid: [1, 1, 1] threads: [1, 1, 1]
  body:
    015: kCustomKernel [source | sink] loop_add_fusion_1 grid: [1, 1, 1] threads: [1, 1, 1]
"""

HLO = """\
HloModule jit_run

%step (p: (s32[], f32[2,3], u8[9,9])) -> (s32[], f32[2,3], u8[9,9]) {
  %p = (s32[], f32[2,3]{1,0}, u8[9,9]) parameter(0)
  %x = f32[2,3]{1,0} get-tuple-element(%p), index=1
  %images = u8[9,9]{1,0} get-tuple-element(%p), index=2
  %gemm = f32[2,5]{1,0} fusion(%x, %images), kind=kCustom, calls=%fused
  %moved = f32[2,5]{0,1} copy(%gemm)
  ROOT %t = (s32[], f32[2,3]{1,0}, u8[9,9]) tuple(%x)
}

%chunk (q: (s32[], f32[2,3], u8[9,9])) -> (s32[], f32[2,3], u8[9,9]) {
  %q = (s32[], f32[2,3]{1,0}, u8[9,9]) parameter(0)
  %a = f32[100]{0} fusion(%q), kind=kLoop, calls=%other
  ROOT %w = (s32[], f32[2,3]{1,0}, u8[9,9]) while(%q), condition=%c, body=%step
}

ENTRY %main (r: (s32[], f32[2,3], u8[9,9])) -> (s32[], f32[2,3], u8[9,9]) {
  %r = (s32[], f32[2,3]{1,0}, u8[9,9]) parameter(0)
  ROOT %v = (s32[], f32[2,3]{1,0}, u8[9,9]) while(%r), condition=%d, body=%chunk
}
"""


UNKNOWN = [None] * 4
KNOWN = HLO.replace("body=%step", 'body=%step, backend_config={"known_trip_count":{"n":"2"}}')


def test_kernels_of_a_loop_are_those_of_its_own_body():
    """Without its condition, and without what loops within run, whose length is not known."""
    nodes = read_thunks(LISTING)
    assert [node.kind for node in nodes].count("While") == 4 and nodes[
        7
    ].name == "gemm_fusion_dot_1"
    every = loops(nodes, UNKNOWN)
    kernels = [
        (loop.depth, loop.graphed, loop.after, [node.kind for node in loop.body]) for loop in every
    ]
    kernel = "CustomKernel"
    assert kernels == [
        (0, True, "001", [kernel, kernel]),
        (1, True, "004", [kernel, "Copy"]),
        (0, True, "001", [kernel]),
        (0, False, "000", [kernel]),
    ]
    assert [len(loop.body) for loop in steps_of(every)] == [2]


def test_a_loop_of_known_length_is_part_of_the_step_around_it():
    """With its condition, as often as it turns: such as a scan over a model's blocks."""
    every = loops(read_thunks(LISTING), [None, 3, None, None])
    names = [
        "loop_gather_fusion_8",
        *["loop_reduce_fusion", "gemm_fusion_dot_1", "kCopy"] * 3,
        "loop_and_fusion",
    ]
    assert [node.name for node in every[0].body] == names and every[1].turns == 3
    assert steps_of(every) == [every[0], every[2], every[3]]


def test_lengths_are_read_in_the_order_of_the_listing():
    assert loop_turns(HLO) == [None, None] and loop_turns(KNOWN) == [None, 2]


def test_bytes_are_those_of_the_innermost_loop():
    """Operands and results of its kernels; of images, which a step reads a few of, none."""
    assert bytes_of("(f32[3,10]{1,0}, s32[], u8[50,2])") == 4 * 31
    assert step_bytes(HLO) == 4 * (6 + 10) + 4 * (10 + 10)


STACKED = """\
%fused (p0: f32[9,4], p1: s32[], p2: f32[4], p3: f32[9,4]) -> (f32[9,4], f32[4]) {
  %p0 = f32[9,4]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[4]{0} parameter(2)
  %p3 = f32[9,4]{1,0} parameter(3)
  %flat = f32[36]{0} bitcast(%p0)
  %part = f32[2]{0} dynamic-slice(%flat, %p1), dynamic_slice_sizes={2}
  %put = f32[9,4]{1,0} dynamic-update-slice(%p3, %p2, %p1)
  ROOT %both = (f32[9,4]{1,0}, f32[2]{0}) tuple(%put, %part)
}

%block (p: (s32[], f32[9,4], f32[4])) -> (s32[], f32[9,4], f32[4]) {
  %p = (s32[], f32[9,4]{1,0}, f32[4]{0}) parameter(0)
  %f = (f32[9,4]{1,0}, f32[2]{0}) fusion(%p, %p, %p, %p), kind=kLoop, calls=%fused
}

%step (q: (s32[], f32[9,4], f32[4])) -> (s32[], f32[9,4], f32[4]) {
  %q = (s32[], f32[9,4]{1,0}, f32[4]{0}) parameter(0)
  %w = (s32[], f32[9,4]{1,0}) while(%q), condition=%c, body=%block, backend_config={"known_trip_count":{"n":"9"}}
  %x = f32[9,4]{1,0} get-tuple-element(%w), index=1
  %y = f32[9,4]{1,0} copy(%x)
}

ENTRY %main (r: (s32[], f32[9,4], f32[4])) -> (s32[], f32[9,4], f32[4]) {
  %r = (s32[], f32[9,4]{1,0}, f32[4]{0}) parameter(0)
  ROOT %v = (s32[], f32[9,4]{1,0}, f32[4]{0}) while(%r), condition=%d, body=%step
}
"""


def test_bytes_of_a_loop_of_known_length_are_those_of_its_slices():
    """Every turn reads two numbers and an index and writes two numbers; it reads four and puts them
    into their place."""
    assert step_bytes(STACKED) == 9 * 4 * (2 + 1 + 2 + 4 + 4) + 4 * (36 + 36)


@pytest.mark.parametrize("what", ["training", "scoring"])
@pytest.mark.parametrize("name", ["local", "fedavg", "heterofl"])
def test_compiled_programs_are_those_of_a_round(name, what):
    """Clients that keep a state, clients that keep none and slices are told apart by shapes."""
    federation = gpu_aot.federation_of(gpu_aot.small_group(name), 1)
    runs, (states, schedules, servers, data, when) = gpu_aot.program(
        gpu_aot.method_of(name), federation, 1, what
    )
    assert runs.keys() == {bucket.name for bucket in federation.buckets}
    for bucket, run in runs.items():
        run = on_mesh(run, client_mesh(1), donate=False)
        result = jax.eval_shape(run, states[bucket], schedules[bucket], servers, data[bucket], when)
        later, scores = result if what == "training" else (states[bucket], result)
        assert jax.tree.map(lambda x: x.shape, later) == jax.tree.map(
            lambda x: x.shape, states[bucket]
        )
        assert jax.tree.leaves(scores)


@pytest.mark.parametrize(
    "installed", [(), ("jax_cuda12_plugin",), ("jax_cuda13_plugin",), tuple(gpu_aot.PLUGINS)]
)
def test_either_plugin_is_found(installed, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)
    assert gpu_aot.cuda_plugin() == next(iter(installed), None)


def test_without_a_plugin_one_line_says_what_to_install():
    if gpu_aot.cuda_plugin():
        pytest.skip("there is one")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_aot"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "pip install 'jax[cuda12]', or 'jax[cuda13]'" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(gpu_aot.cuda_plugin() is None, reason="needs a CUDA plugin of jax")
def test_a_round_of_clients_is_one_graph():
    """One graph also for five architectures, whose branches are independent, and for an
    architecture with a scanned stage."""
    command = [sys.executable, "-m", "benchmarks.gpu_aot", "--groups=cnn4,cnn5,resnet152"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    single, five, scanned = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith(("| cnn4", "| cnn5", "| resnet152"))
    )
    assert scanned[4:6] == ["yes, 1 abreast"] * 2 and int(scanned[2]) < 2000
    assert int(single[2]) < 70 and len(five[2].split("+")) == 5
    # With jax 0.12 each of the five loops waits for a kernel of its own, and "5 abreast" is not
    # told.
    assert single[4:6] == ["yes, 1 abreast"] * 2 and all(
        cell.startswith("yes") for cell in five[4:6]
    )
    assert float(single[6].replace(",", "")) < 500 and float(five[6].replace(",", "")) < 2000  # MiB
