"""What a measurement reports: figures, checks and facts, each written out at once.

A measurement appends to its report file line by line. What it wrote before it hung or crashed is kept.
"""

import json
import statistics
import time

RAW = 20  # figures of at most so many values keep them all


class Missing(Exception):
    """The host lacks what this measurement needs. The text says what, and the remedy."""


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]


def summary(values):
    """n, median and p95 of some values, with the extremes. Raises ValueError if there are none."""
    values = [float(v) for v in values]
    if not values:
        raise ValueError("a figure without values")
    found = {
        "n": len(values),
        "median": statistics.median(values),
        "p95": percentile(values, 95),
        "least": min(values),
        "most": max(values),
    }
    if len(values) <= RAW:
        found["values"] = values
    return found


class Report:
    """Writes a measurement's lines to `path`. label: gpucheck.GPU or gpucheck.DRY, kept with every line."""

    def __init__(self, path, label):
        self._file = open(path, "a", encoding="utf-8")
        self._label = label

    def _line(self, kind, **fields):
        self._file.write(json.dumps(dict({"kind": kind, "label": self._label}, **fields)) + "\n")
        self._file.flush()

    def figure(self, name, unit, values):
        """One quantity, from all its samples."""
        self._line("figure", name=name, unit=unit, **summary(values))

    def check(self, name, expected, got, ok=None):
        """A comparison; one that is not ok fails the measurement. Without ok, `expected` and `got` must be equal."""
        self._line("check", name=name, expected=expected, got=got, ok=bool(expected == got if ok is None else ok))

    def fact(self, name, value):
        self._line("fact", name=name, value=value)

    def note(self, text):
        self._line("note", text=text)


def read(path):
    """The lines of a report, by kind. A last line that is cut off is dropped: its writer was killed."""
    found = {"figure": [], "check": [], "fact": [], "note": []}
    try:
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
    except FileNotFoundError:
        return found
    for text in lines:
        try:
            line = json.loads(text)
            found[line.pop("kind")].append(line)
        except (ValueError, KeyError):
            continue
    return found


def wait_until(true, timeout, what, every=0.005):
    """The first true value of true(). Raises TimeoutError that names `what`."""
    until = time.monotonic() + timeout
    while True:
        value = true()
        if value:
            return value
        if time.monotonic() > until:
            raise TimeoutError("waited %g s for %s" % (timeout, what))
        time.sleep(every)
