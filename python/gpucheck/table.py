"""The results as Markdown."""

import os

from . import DRY, runner


def beside(out):
    return os.path.splitext(out)[0] + ".md"


def reason(result):
    return ": " + result["reason"] if result.get("reason") else ""


def number(value):
    return "%.4g" % value if abs(value) < 1e5 else "%.3e" % value


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def markdown(label, about, results):
    """Every row carries the label of its results. A dry run's page says in its title that it holds no GPU figures."""
    dry = label == DRY
    lines = ["# GPU check%s" % (" (%s: these are not figures of a GPU)" % DRY if dry else ""), ""]
    head = [
        ("date", about["when"]),
        ("GPU", DRY if dry else ", ".join(about["gpu"])),
        ("driver", about["driver"] or "none"),
        ("torch", "%s, CUDA %s, NCCL %s" % (about["torch"], about["cuda_of_torch"], about["nccl"])),
        ("Python, kernel", "%s, %s" % (about["python"], about["kernel"])),
        ("processors, load at the start", "%s, %s" % (about["cpus"], about["load"])),
    ]
    lines += ["| host | |", "|---|---|", *["| %s | %s |" % (k, cell(v)) for k, v in head], ""]
    if about["missing"]:
        lines += ["Missing on this host:", "", *["- %s" % text for text in about["missing"]], ""]
    lines += ["| measurement | status | seconds | reason |", "|---|---|---|---|"]
    lines += [
        "| %s | %s | %.1f | %s |" % (r["name"], r["status"], r["seconds"], cell(r.get("reason", ""))) for r in results
    ]
    lines += ["", "| measurement | figure | unit | n | median | p95 | on |", "|---|---|---|---|---|---|---|"]
    for r in results:
        for f in r.get("figures", ()):
            row = (r["name"], cell(f["name"]), f["unit"], f["n"], number(f["median"]), number(f["p95"]))
            lines.append("| %s | %s | %s | %d | %s | %s | %s |" % (*row, DRY if dry else "GPU"))
    said = [(r["name"], f["name"], f["value"]) for r in results for f in r.get("facts", ())]
    said += [(r["name"], "check: " + c["name"], "%s" % (c["got"],)) for r in results for c in r.get("checks", ())]
    said += [(r["name"], "note", n["text"]) for r in results for n in r.get("notes", ())]
    if said:
        lines += ["", "| measurement | fact | value |", "|---|---|---|"]
        lines += ["| %s | %s | %s |" % tuple(map(cell, row)) for row in said]
    left = [(r["name"], r["left_behind"]) for r in results if r.get("left_behind")]
    if left:
        lines += ["", *["- %s left processes that SIGKILL did not end: %s" % pair for pair in left]]
    return "\n".join(lines) + "\n"


__all__ = ["beside", "markdown", "reason", "runner"]
