import jax
import numpy as np
import pytest

from fedjax_ht.core.executor import wasted_lane_steps
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.methods.local import local
from fedjax_ht.models import model_group
from fedjax_ht.simulation import lanes as rule
from fedjax_ht.simulation.lanes import (
    H100,
    StepCost,
    choose_lanes,
    fewest_seconds,
    simulation_lanes,
    step_cost,
    typical,
)
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import ASSIGNMENT, MODULES, NUM_CLASSES, SHAPE, TRAINING, federation_data

FEDERATION = make_federation(MODULES, SHAPE, NUM_CLASSES, assignment=ASSIGNMENT)
STEPS = [np.array([7, 5, 3, 3, 2]), np.array([4, 4, 1])]
# launches take longer than its work
SMALL = StepCost(kernels=50, moved=1e6, flops=1e6, memory=1e6)


def seconds(steps, lanes, cost, device):
    """Computes the seconds of a round by explicit loops over chunks and steps."""
    total = 0.0
    for start in range(0, len(steps), lanes):
        for _ in range(steps[start]):
            total += max(cost.kernels * device.launch, lanes * cost.moved / device.bandwidth)
    return total


@pytest.mark.parametrize("moved", [1e3, 1e8, 3e8, 1e12])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_number_is_sooner_done(seed, moved):
    steps = -np.sort(-np.random.default_rng(seed).geometric(0.02, 40))
    cost = StepCost(kernels=200, moved=moved, flops=0, memory=0)
    lanes = fewest_seconds(steps, cost, H100, room=1)
    times = {n: seconds(steps, n, cost, H100) for n in range(1, rule.MOST + 1)}
    assert times[lanes] == pytest.approx(min(times.values()))


def test_all_run_side_by_side_while_launches_take_longest_and_none_where_work_does():
    assert fewest_seconds(np.full(20, 9), SMALL, H100, room=1e12) == 20
    assert fewest_seconds(np.full(20, 9), SMALL._replace(flops=1e15), H100, room=1e12) == 1


def test_memory_bounds_the_lanes_but_for_one():
    assert fewest_seconds(np.full(20, 9), SMALL, H100, room=4.5e6) == 4
    assert fewest_seconds(np.full(20, 9), SMALL, H100, room=0) == 1


def test_fewer_lane_steps_are_wasted_than_by_a_fixed_number_where_clients_differ():
    steps = -np.sort(-np.random.default_rng(0).dirichlet(np.full(40, 0.1)) * 5000).astype(int)
    lanes = fewest_seconds(steps, step_cost(resnet(8), 10), H100, room=H100.memory)
    assert 1 < lanes < 32
    assert wasted_lane_steps(steps, lanes) < wasted_lane_steps(steps, 32)


def resnet(depth):
    return make_federation(
        model_group(f"resnet{depth}", 10, (32, 32, 3)), (32, 32, 3), 10, 1
    ).buckets[0]


def test_a_deeper_network_takes_more_of_everything():
    small, large = step_cost(resnet(4), 10), step_cost(resnet(8), 10)
    assert all(a < b for a, b in zip(small, large))
    twice = step_cost(resnet(4), 20)
    assert twice.kernels == small.kernels and twice.flops == pytest.approx(2 * small.flops)


def test_typical_steps_span_all():
    np.testing.assert_array_equal(typical(np.array([1, 9, 5, 3, 7]), 3), [9, 5, 1])
    np.testing.assert_array_equal(typical(np.array([1, 9]), 5), [9, 1])


def test_one_at_a_time_on_cpu_or_what_was_asked_for():
    names = [b.name for b in FEDERATION.buckets]

    def chosen(lanes):
        return choose_lanes(
            lanes, FEDERATION.buckets, STEPS, participants=8, batch_size=4, mesh=client_mesh(1)
        )

    assert chosen("auto") == dict.fromkeys(names, 1)
    assert chosen(3) == dict.fromkeys(names, 3)
    assert chosen({name: i + 2 for i, name in enumerate(names)}) == {
        name: i + 2 for i, name in enumerate(names)
    }
    with pytest.raises(ValueError, match=f"lanes has no number for {names[1]}"):
        chosen({names[0]: 2})


def test_on_an_accelerator_the_rule_decides(monkeypatch):
    monkeypatch.setattr(rule, "platform_of", lambda mesh: "gpu")
    everyone = choose_lanes(
        "auto", FEDERATION.buckets, STEPS, participants=8, batch_size=4, mesh=client_mesh(1)
    )
    assert list(everyone.values()) == [5, 3]  # tiny networks: launches are all they take
    few = choose_lanes(
        "auto", FEDERATION.buckets, STEPS, participants=4, batch_size=4, mesh=client_mesh(1)
    )
    assert list(few.values()) == [3, 2]
    assert few == choose_lanes(
        "auto", FEDERATION.buckets, STEPS, participants=4, batch_size=4, mesh=client_mesh(1)
    )


def test_lanes_are_known_before_a_simulation_is_made(monkeypatch):
    monkeypatch.setattr(rule, "platform_of", lambda mesh: "gpu")
    data = federation_data(FEDERATION)
    counts = data.counts["train"][None]
    chosen = simulation_lanes(FEDERATION, counts, TRAINING, SimulationOptions(devices=1))
    assert min(chosen.values()) > 1
    for lanes in ("auto", chosen):
        options = SimulationOptions(lanes=lanes, devices=1)
        assert make_simulation(local(TRAINING), FEDERATION, data, options).lanes == chosen


def test_every_operation_counts_where_it_is_nested():
    def scanned(x):
        return jax.lax.scan(lambda x, _: (jax.jit(lambda x: x @ x)(x), None), x, None, length=3)[
            0
        ].sum()

    counts = rule.Counter()
    rule._count(jax.make_jaxpr(scanned)(np.eye(4, dtype=np.float32)), 1, counts)
    assert counts == {"kernels": 4, "written": 3 * 64 + 4, "moved": 3 * 3 * 64 + 64 + 4}
