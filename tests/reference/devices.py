"""A round on simulated devices, one client after another."""

from typing import NamedTuple


class Device(NamedTuple):
    """FLOP/s, and bytes/s up and down; None takes no time."""

    flops: float | None = None
    up: float | None = None
    down: float | None = None


class Work(NamedTuple):
    """A participant's work in a round, and a flag for an upload that is lost."""

    client: int
    flops: float
    up: float
    down: float
    lost: bool = False


def participant_seconds(device: Device, work: Work) -> float:
    """Download, training, upload, one after another."""
    seconds = 0.0
    if device.down is not None:
        seconds += work.down / device.down
    if device.flops is not None:
        seconds += work.flops / device.flops
    if device.up is not None:
        seconds += work.up / device.up
    return seconds


def play(devices: list[Device], rounds: list[list[Work]], deadline: float = 0.0) -> list[dict]:
    """The seconds and the clock of each round, who arrived and who was too late; without a deadline
    (0) nobody is."""
    rows, clock = [], 0.0
    for participants in rounds:
        length, arrived, late = 0.0, [], []
        for work in participants:
            if work.lost:
                continue
            seconds = participant_seconds(devices[work.client], work)
            if deadline and seconds > deadline:
                late.append(work.client)
            else:
                arrived.append(work.client)
                length = max(length, seconds)
        if late:
            length = deadline
        clock += length
        rows.append({"seconds": length, "clock": clock, "arrived": arrived, "late": late})
    return rows


def play_late(devices: list[Device], draw, rounds: int, deadline: float) -> list[dict]:
    """Plays rounds as `play` does, but late uploads arrive in a later round, at the time of day at
    which they end.

    `draw(round, unfinished)` returns the participants' works in a round in which the clients
    `unfinished` still compute or send.
    """
    rows, clock, ends = [], 0.0, {}
    for round in range(rounds):
        before = set(ends)
        works = [work for work in draw(round, before) if not work.lost]
        for work in works:
            ends[work.client] = clock + participant_seconds(devices[work.client], work)
        missed = {client for client, end in ends.items() if end > clock + deadline}
        over = clock + deadline if missed else max(ends.values(), default=clock)
        arrived = sorted(set(ends) - missed)
        rows.append(
            {
                "seconds": over - clock,
                "clock": over,
                "arrived": arrived,
                "late": sorted(missed - before),
                "arrived_late": [client for client in arrived if client in before],
            }
        )
        clock = over
        ends = {client: end for client, end in ends.items() if client in missed}
    return rows
