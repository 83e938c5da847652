"""nvidia-smi's answers, as values. What it does not know is None, never 0."""

import csv
import shutil
import subprocess

from .figures import Missing

# Its words for "no value", with and without the brackets that came and went between drivers.
NO_VALUE = {
    "", "n/a", "not supported", "not available", "unknown error", "insufficient permissions",
    "requested functionality has been deprecated",
}  # fmt: skip
REASONS, REASONS_NEWER = "clocks_throttle_reasons.active", "clocks_event_reasons.active"
GPU_FIELDS = (
    "index", "uuid", "name", "driver_version", "pci.bus_id", "memory.total", "memory.used", "ecc.mode.current",
    "mig.mode.current", REASONS, "temperature.gpu", "power.draw",
)  # fmt: skip
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")
_CONVERT = {
    "index": int,
    "pid": int,
    "memory.total": float,
    "memory.used": float,
    "used_memory": float,
    "temperature.gpu": float,
    "power.draw": float,
    "ecc.mode.current": {"enabled": True, "disabled": False}.get,
    "mig.mode.current": {"enabled": True, "disabled": False}.get,
    REASONS: lambda text: int(text, 16),
    REASONS_NEWER: lambda text: int(text, 16),
}


def value(field, text):
    """One cell as the field's type, None where nvidia-smi has no value."""
    text = text.strip()
    word = text.strip("[]").strip().lower()
    if word in NO_VALUE:
        return None
    convert = _CONVERT.get(field, str)
    try:
        found = convert(word)
    except ValueError:
        found = None
    if found is None:
        raise ValueError("nvidia-smi: %s is %r, which is not a value of it" % (field, text))
    return found if convert is not str else text


def parse(text, fields):
    """Rows of `--format=csv,noheader,nounits` as dicts. Raises ValueError on a line of another shape."""
    rows = []
    for line in csv.reader(text.splitlines()):
        cells = [c.strip() for c in line]
        if not any(cells) or (len(cells) == 1 and cells[0].lower().startswith(("no running", "no devices"))):
            continue
        if len(cells) != len(fields):
            text = ", ".join(cells)
            raise ValueError("nvidia-smi: %d cells where %d were asked for: %s" % (len(cells), len(fields), text))
        rows.append({field: value(field, cell) for field, cell in zip(fields, cells)})
    return rows


def find():
    path = shutil.which("nvidia-smi")
    if path is None:
        raise Missing("nvidia-smi is not on PATH: install the NVIDIA driver's utilities")
    return path


def query(what, fields, path=None, timeout=15.0):
    """what: "gpu" or "compute-apps"."""
    argv = [path or find(), "--query-%s=%s" % (what, ",".join(fields)), "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError("nvidia-smi exited with %d: %s" % (done.returncode, done.stdout.strip()[:300]))
    return parse(done.stdout, fields)


def gpus(path=None):
    """One row per GPU. A driver that dropped the older name of the throttle reasons is asked by the newer one."""
    try:
        return query("gpu", GPU_FIELDS, path)
    except RuntimeError:
        newer = [REASONS_NEWER if field == REASONS else field for field in GPU_FIELDS]
        rows = query("gpu", newer, path)
    for row in rows:
        row[REASONS] = row.pop(REASONS_NEWER)
    return rows


def processes(path=None):
    return query("compute-apps", PROCESS_FIELDS, path)
