"""The campaign's results beside other libraries' as Markdown: ({item: result}) -> text."""

from benchmarks.campaign.pages import Results
from benchmarks.report import number, table


def protocols(results: Results) -> str:
    """Returns a row for each measurement, with published figures, and lines for whole runs."""
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
    """Returns the cells of a round that `campaign_protocols.protocol_round` measured."""
    whole = r["round"] + r.get("evaluation", 0.0)
    published, memory = [], []
    for name, seconds in r["published"].items():
        published.append(f"{name}: {number(seconds)}, {number(seconds / whole, 1)} x")
    for name, size in r["published_peak"].items():
        memory.append(f"{name}: {number(size / 1e9)}")
    return [
        r["protocol"],
        f"{r['group']}, {r['clients']} clients, states on the {r['client_store']}",
        r["method"],
        number(r["round"], 3),
        number(r.get("evaluation"), 3),
        number(whole, 3),
        "; ".join(published) or "-",
        number(r["compile"], 1),
        number(r["peak"] / 1e9),
        "; ".join(memory) or "-",
        f"{r['steps']:,}, {r['longest']}",
        ", ".join(map(str, r["lanes"].values())),
    ]


def run_line(r: dict) -> str:
    """Returns a sentence on a run that `campaign_protocols.pfl_run` played."""
    return (
        f"{r['protocol']}: {r['rounds']:,} rounds with evaluations in {number(r['whole'] / 60)} "
        f"minutes, compiling included, {number(1e3 * r['round'], 1)} ms a round; "
        f"{100 * r['accuracy']:.2f} % of the test images of {r['data']} at the end; "
        f"{number(r['peak'] / 1e9)} GB."
    )


def beside_htfllib(results: Results) -> str:
    """Returns a row for each method: HtFLlib's round and ours, each with its evaluation."""
    sides: dict[str, dict[str, dict]] = {}
    for r in results.values():
        sides.setdefault(r["method"], {})[r.get("side", "ours")] = r
    rows = []
    for method, side in sides.items():
        rows.append(beside_cells(method, side.get("HtFLlib", {}), side.get("ours", {})))
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
    """Returns the cells of a method; a side that was not measured is {}."""
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
