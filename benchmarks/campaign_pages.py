"""The campaign's results as Markdown tables, by slice: ({item: result}) -> text."""

import re
from pathlib import Path

import numpy as np

from benchmarks.report import number, table

ESTIMATES = Path(__file__).parent / "results" / "gpu_aot_h100.md"
Results = dict[str, dict]


def mib(value: float | None) -> str:
    return number(value and value / 2**20, 0)


def percent(values: list[float]) -> str:
    """Mean and standard deviation of shares."""
    return f"{100 * np.mean(values):.2f} ± {100 * np.std(values):.2f}"


def estimates(path: Path = ESTIMATES) -> dict[tuple[str, str], dict[str, str]]:
    """(group, lanes) -> column -> cell, of what was compiled for a described device."""
    lines = [
        line.strip("| \n").split(" | ")
        for line in path.read_text().splitlines()
        if line.startswith("| ")
    ]
    head, rows = (lines[0], lines[2:]) if lines else ([], [])
    return {(row[0], row[1]): dict(zip(head, row)) for row in rows}


def contract(results: Results) -> str:
    """The largest first."""

    def order(found):
        return -(found["largest"] if found["largest"] is not None else np.inf)

    rows = [
        [
            r["entry"],
            str(r["lanes"]),
            scientific(r["largest"]),
            r["at"],
            scientific(r["accuracy"], "-"),
            str(r["allowed"]),
        ]
        for r in sorted(results.values(), key=order)
    ]
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
    """In which way something was compiled, if not as a simulation does by itself."""
    told = {r.get("precision"): r.get("precision"), "no graphs": not r.get("graphs", True)}
    return [name for name, so in (told | {"a program a bucket": not r["together"]}).items() if so]


def steps(results: Results) -> str:
    known = estimates() if ESTIMATES.exists() else {}
    rows = []
    for r in results.values():
        told = known.get((r["group"], str(r["lanes"])), {})

        def cell(column, told=told):
            return told.get(column, "-")

        rows.append(
            [
                r["group"],
                str(r["lanes"]),
                ", ".join(unusual(r)),
                number(r["ms"], 3),
                number(r["ms"] / r["lanes"], 3),
                *(cell(f"{what} ms") for what in ("launch", "memory", "arithmetic")),
                cell("kernels a step"),
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
    """A row a group, and what max(kernels * launch, lanes * work) would need."""
    kernels = [r for r in results.values() if "us" in r]
    found = {}
    for r in results.values():
        if "lanes" in r:
            found.setdefault(r["group"], {})[r["lanes"]] = r
    every = sorted({n for by_lanes in found.values() for n in by_lanes})
    rows = []
    for group, by_lanes in found.items():
        least, most = min(by_lanes), max(by_lanes)
        cells = [number(by_lanes[n]["ms"], 3) if n in by_lanes else "-" for n in every]
        launch = launch_cost(group, by_lanes[least]["ms"]) if least == 1 else None
        rows.append([group, *cells, number(by_lanes[most]["ms"] / most, 3), number(launch)])
    head = [
        "group",
        *(f"{n} lanes" for n in every),
        "ms a lane at the most lanes",
        "us a kernel at one lane",
    ]
    lines = [f"ms a step.\n\n{table(head, rows)}"] if rows else []
    for r in kernels:
        lines.append(
            f"A small product in a loop, {'in' if r['graphs'] else 'outside'} a graph: "
            f"{number(r['us'])} us."
        )
    return "\n\n".join(lines)


def launch_cost(group: str, ms: float) -> float | None:
    """Microseconds a kernel, by their number at the fewest lanes that were compiled for a described
    device."""
    known = estimates() if ESTIMATES.exists() else {}
    counts = {int(n): told["kernels a step"] for (name, n), told in known.items() if name == group}
    counts = {n: kernels for n, kernels in counts.items() if kernels != "-"}
    if not counts:
        return None
    return 1e3 * ms / sum(map(int, re.findall(r"\d+", counts[min(counts)])))


def torch(results: Results) -> str:
    """A row a group: milliseconds a client's step, and with vmap of all lanes."""
    columns = dict.fromkeys((r["how"], r["lanes"]) for r in results.values())
    groups = dict.fromkeys(r["group"] for r in results.values())
    by = {(r["group"], r["how"], r["lanes"]): r for r in results.values()}

    def cell(r: dict | None) -> str:
        return "-" if r is None else r.get("note") or number(r["ms"], 3)

    rows = [[group, *(cell(by.get((group, *column))) for column in columns)] for group in groups]
    head = ["group", *(f"{how}, {n} lanes" if how == "vmap" else how for how, n in columns)]
    compiled = [
        f"{r['group']} {r['how']} {number(r['compile'], 0)}"
        for r in results.values()
        if r["how"] in ("compile", "graphs") and "compile" in r
    ]
    versions = {r["version"] for r in results.values() if "version" in r}
    lines = [f"PyTorch {', '.join(versions)}." if versions else "", table(head, rows)]
    return "\n\n".join(
        [*lines, f"Seconds to compile: {', '.join(compiled)}." if compiled else ""]
    ).strip()


def protocols(results: Results) -> str:
    """A row a measurement, what others published beside it, and lines for whole runs."""
    rows = [protocol_cells(r) for r in results.values() if "steps" in r]
    head = [
        "protocol",
        "model",
        "method",
        "seconds a round",
        "an evaluation",
        "both",
        "published s, over ours",
    ]
    head += ["compile s", "peak GB", "published GB", "steps, longest client's", "lanes"]
    parts = [table(head, rows)] if rows else []
    parts += [run_line(r) for r in results.values() if "whole" in r]
    return "\n\n".join(parts)


def protocol_cells(r: dict) -> list[str]:
    """The cells of a round that `campaign_protocols.protocol_round` measured."""
    whole = r["round"] + r.get("evaluation", 0.0)
    others = [
        f"{name}: {number(s)}, {number(s / whole, 1)} x" for name, s in r["published"].items()
    ]
    memory = [f"{name}: {number(size / 1e9)}" for name, size in r["published_peak"].items()]
    return [
        r["protocol"],
        f"{r['group']}, {r['clients']} clients, states on the {r['client_store']}",
        r["method"],
        number(r["round"], 3),
        number(r.get("evaluation"), 3),
        number(whole, 3),
        "; ".join(others) or "-",
        number(r["compile"], 1),
        number(r["peak"] / 1e9),
        "; ".join(memory) or "-",
        f"{r['steps']:,}, {r['longest']}",
        ", ".join(map(str, r["lanes"].values())),
    ]


def run_line(r: dict) -> str:
    """A sentence of a run that `campaign_protocols.pfl_run` played."""
    return (
        f"{r['protocol']}: {r['rounds']:,} rounds with evaluations in {number(r['whole'] / 60)} "
        "minutes, compiling "
        f"included, {number(1e3 * r['round'], 1)} ms a round; {100 * r['accuracy']:.2f} % of the "
        "test images of "
        f"{r['data']} at the end; {number(r['peak'] / 1e9)} GB."
    )


def beside_htfllib(results: Results) -> str:
    """A row a method: HtFLlib's round and ours, each with its evaluation."""
    sides: dict[str, dict[str, dict]] = {}
    for r in results.values():
        sides.setdefault(r["method"], {})[r.get("side", "ours")] = r
    rows = [
        beside_cells(method, side.get("HtFLlib", {}), side.get("ours", {}))
        for method, side in sides.items()
    ]
    head = [
        "method",
        "HtFLlib's round s",
        "of it evaluation",
        "our round",
        "our evaluation",
        "HtFLlib / ours",
    ]
    head += ["compile s", "cached programs", "peak GB"]
    versions = {r["version"] for r in results.values() if "version" in r}
    about = f"HtFLlib under PyTorch {', '.join(versions)}.\n\n" if versions else ""
    return about + table(head, rows)


def beside_cells(method: str, theirs: dict, ours: dict) -> list[str]:
    """The cells of a method; a side that was not measured is {}."""
    ratio = None
    # HtFLlib's rounds are timed with the evaluation in them.
    if theirs.get("round") and ours.get("round"):
        ratio = theirs["round"] / (ours["round"] + ours["evaluation"])
    return [
        method,
        theirs.get("note") or number(theirs.get("round")),
        number(theirs.get("evaluation")),
        *(number(ours.get(part), 3) for part in ("round", "evaluation")),
        number(ratio, 1),
        number(ours.get("compile"), 1),
        str(ours.get("cached", "-")),
        number(ours.get("peak") and ours["peak"] / 1e9),
    ]
