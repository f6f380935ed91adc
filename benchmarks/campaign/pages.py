"""The campaign's results as Markdown tables, by slice: ({item: result}) -> text."""

import re
from pathlib import Path

import numpy as np

from benchmarks.report import number, table

ESTIMATES = Path(__file__).parents[1] / "results" / "gpu_aot_h100.md"
Results = dict[str, dict]


def mib(value: float | None) -> str:
    return number(value and value / 2**20, 0)


def percent(values: list[float]) -> str:
    """Formats mean and standard deviation of shares."""
    return f"{100 * np.mean(values):.2f} ± {100 * np.std(values):.2f}"


def estimates(path: Path = ESTIMATES) -> dict[tuple[str, str], dict[str, str]]:
    """Reads what was compiled for a described device: (group, lanes) -> column -> cell.

    The page's tables are of the same rows, with other columns.
    """
    if not path.exists():
        return {}
    known: dict[tuple[str, str], dict[str, str]] = {}
    for table_text in re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE):
        head, _, *rows = [line.strip("| ").split(" | ") for line in table_text.splitlines()]
        for row in rows:
            known.setdefault((row[0], row[1]), {}).update(zip(head, row))
    return known


def contract(results: Results) -> str:
    """Returns a row for each check of recorded rounds, the largest difference first."""

    def order(result):
        return -np.inf if result["largest"] is None else -result["largest"]

    rows = []
    for r in sorted(results.values(), key=order):
        rows.append(
            [
                r["entry"],
                str(r["lanes"]),
                scientific(r["largest"]),
                r["at"],
                scientific(r["accuracy"], "-"),
                str(r["allowed"]),
            ]
        )
    head = (
        "method",
        "lanes",
        "largest difference, of the value",
        "round and number",
        "of an accuracy",
        "allowed",
    )
    return table(head, rows)


def scientific(value: float | None, absent: str = "not finite") -> str:
    return absent if value is None else f"{value:.1e}"


def unusual(r: dict) -> list[str]:
    """Returns in which ways a program was compiled otherwise than a simulation's."""
    ways = []
    if r.get("precision"):
        ways.append(r["precision"])
    if not r.get("graphs", True):
        ways.append("no graphs")
    if not r["together"]:
        ways.append("a program a bucket")
    return ways


def steps(results: Results) -> str:
    """Returns a row for each group and number of lanes, with the estimates beside."""
    known, rows = estimates(), []
    for r in results.values():
        estimate = known.get((r["group"], str(r["lanes"])), {})
        columns = ("launch ms", "memory ms", "arithmetic ms", "kernels a step")
        rows.append(
            [
                r["group"],
                str(r["lanes"]),
                ", ".join(unusual(r)),
                number(r["ms"], 3),
                number(r["ms"] / r["lanes"], 3),
                *(estimate.get(column, "-") for column in columns),
                number(r["compile"], 1),
                mib(r["peak"]),
            ]
        )
    head = [
        "group",
        "lanes",
        "",
        "ms a step",
        "ms a client step",
        "estimated: launch ms",
        "memory ms",
    ]
    return table([*head, "arithmetic ms", "kernels", "compile s", "peak MiB"], rows)


def rounds(results: Results) -> str:
    """Returns a row for each method and group of whole rounds."""
    head = [
        "group",
        "method",
        "trials",
        "compile s",
        "seconds a round",
        "peak MiB",
        "steps, longest client's",
        "lanes",
    ]
    head.append("cached")
    rows = [
        [
            ", ".join([f"{r['group']}, {r['clients']} clients", *unusual(r)]),
            r["method"],
            str(r["trials"]),
            number(r["compile"], 1),
            number(r["round"], 3),
            mib(r["peak"]),
            f"{r['steps']:,}, {r['longest']}",
            ", ".join(map(str, r["lanes"].values())),
            str(r["cached"]),
        ]
        for r in results.values()
    ]
    return table(head, rows)


def servers(results: Results) -> str:
    """Returns a row for each measurement of a server."""
    rows = [
        [
            r["what"],
            number(r.get("seconds"), 4),
            number(r.get("bar")),
            number(r.get("compile"), 1),
            number(r.get("flops") and r["flops"] / 1e12),
            mib(r.get("peak")),
        ]
        for r in results.values()
    ]
    return table(("what", "seconds", "bar", "compile s", "TFLOP", "peak MiB"), rows)


def accuracies(results: Results) -> str:
    """Returns a row for each method: accuracies beside the recorded ones, and seconds."""
    head = ["method", "rounds", "seeds", "all clients, best %", "last %", "recorded on CPU: last %"]
    head += [
        "participants, best %",
        "seconds a round, all seeds",
        "an evaluation",
        "compile s",
        "whole run s",
        "peak MiB",
    ]
    rows = [
        [
            r["method"],
            str(r["rounds"]),
            str(len(r["last"])),
            percent(r["best"]),
            percent(r["last"]),
            percent(r["recorded"]) if r.get("recorded") else "-",
            percent(r["participants"]),
            number(r["round"], 3),
            number(r["evaluation"], 3),
            number(r["first"] - r["round"], 1),
            number(r["whole"], 0),
            mib(r["peak"]),
        ]
        for r in results.values()
    ]
    return table(head, rows)


def lanes(results: Results) -> str:
    """Returns a row for each group, for a rule such as max(kernels * launch, lanes * work)."""
    by_group, kernels = {}, []
    for r in results.values():
        if "us" in r:
            kernels.append(r)
        else:
            by_group.setdefault(r["group"], {})[r["lanes"]] = r["ms"]
    every = sorted({n for by_lanes in by_group.values() for n in by_lanes})
    rows = []
    for group, by_lanes in by_group.items():
        most = max(by_lanes)
        launch = launch_cost(group, by_lanes[1]) if 1 in by_lanes else None
        cells = [number(by_lanes.get(n), 3) for n in every]
        rows.append([group, *cells, number(by_lanes[most] / most, 3), number(launch)])
    head = ["group", *(f"{n} lanes" for n in every)]
    head += ["ms a lane at the most lanes", "us a kernel at one lane"]
    parts = [f"ms a step.\n\n{table(head, rows)}"] if rows else []
    for r in kernels:
        place = "in" if r["graphs"] else "outside"
        parts.append(f"A small product in a loop, {place} a graph: {number(r['us'])} us.")
    return "\n\n".join(parts)


def launch_cost(group: str, ms: float) -> float | None:
    """Returns microseconds a kernel of a step of `ms` milliseconds.

    By the number of kernels at the fewest lanes that were compiled for a described device; None
    where none were.
    """
    kernels = {}  # lanes -> "12 + 30", kernels of each bucket
    for (name, n), estimate in estimates().items():
        if name == group and estimate["kernels a step"] != "-":
            kernels[int(n)] = estimate["kernels a step"]
    if not kernels:
        return None
    count = sum(map(int, re.findall(r"\d+", kernels[min(kernels)])))
    return 1e3 * ms / count


def torch(results: Results) -> str:
    """Returns a row for each group: ms of a client's step, and with vmap of all lanes."""
    columns = dict.fromkeys((r["how"], r["lanes"]) for r in results.values())
    groups = dict.fromkeys(r["group"] for r in results.values())
    cells, compiled, versions = {}, [], set()
    for r in results.values():
        cells[r["group"], r["how"], r["lanes"]] = r.get("note") or number(r["ms"], 3)
        if r["how"] in ("compile", "graphs") and "compile" in r:
            compiled.append(f"{r['group']} {r['how']} {number(r['compile'], 0)}")
        if "version" in r:
            versions.add(r["version"])
    rows = []
    for group in groups:
        rows.append([group, *(cells.get((group, *column), "-") for column in columns)])
    head = ["group"]
    for how, n in columns:
        head.append(f"{how}, {n} lanes" if how == "vmap" else how)
    parts = [f"PyTorch {', '.join(versions)}."] if versions else []
    parts.append(table(head, rows))
    if compiled:
        parts.append(f"Seconds to compile: {', '.join(compiled)}.")
    return "\n\n".join(parts)
