"""The real node agent, bin/pitcrew-collector, on this host: without a cluster, NATS or a kubelet.

What it finds is read where it puts it: findings in its spool, which it writes before NATS acknowledges, processes on
GPUs in the debug exporter, metrics on its Prometheus endpoint.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import urllib.error
import urllib.request

from .figures import Missing, wait_until

BINARY = os.path.join("bin", "pitcrew-collector")
ONSETS = ("dev.pitcrew.fault.v1", "dev.pitcrew.anomaly.v1")
POD = os.path.join("pods", "gpu-check", "volumes", "kubernetes.io~empty-dir", "pitcrew")

# The shipped configuration with one more pipeline: what the gpuprocess receiver says, as text.
OVERLAY = """
receivers:
  gpuprocess:
    interval: 1s
exporters:
  debug:
    verbosity: detailed
service:
  pipelines:
    logs/gpucheck:
      receivers: [gpuprocess]
      exporters: [debug]
"""


def binary(root):
    path = os.path.join(root, BINARY)
    if not os.access(path, os.X_OK):
        raise Missing("%s is missing: run make build, and copy bin/ with the tree" % BINARY)
    return path


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % s.getsockname()[1]


def get(url, timeout=5.0):
    """The text at a URL, "" while nobody serves it."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.read().decode(errors="replace")
    except (OSError, urllib.error.URLError):
        return ""


class Agent:
    """A context manager: the agent runs inside. proc, kmsg: what it reads in place of the host's."""

    def __init__(self, context, proc=None, kmsg=None):
        self._binary = binary(context.root)
        self.directory = os.path.join(context.work, "agent")
        self.kubelet = os.path.join(context.memory, "kubelet")
        self.pod = os.path.join(self.kubelet, POD)
        for path in (self.directory, self.pod):
            os.makedirs(path, exist_ok=True)
        overlay = os.path.join(self.directory, "overlay.yaml")
        with open(overlay, "w", encoding="utf-8") as f:
            f.write(OVERLAY)
        self._prometheus = free_address()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PITCREW_")}
        self._env = dict(
            inherited,
            PITCREW_NATS="nats://127.0.0.1:1",  # nobody: findings stay in the spool
            PITCREW_CLUSTER="gpu-check",
            PITCREW_NODE="gpu-check",
            PITCREW_KUBERNETES="",
            PITCREW_RUN_DIR=os.path.join(self.directory, "run"),
            PITCREW_STATE_DIR=os.path.join(self.directory, "state"),
            PITCREW_KUBELET_ROOT=self.kubelet,
            PITCREW_POD_RESOURCES=os.path.join(self.directory, "no-kubelet.sock"),
            PITCREW_PROMETHEUS=self._prometheus,
            PITCREW_PROMETHEUS_INTERVAL="1s",
            PITCREW_PROC=proc or "/proc",
            PITCREW_KMSG=kmsg or os.path.join(self.directory, "kmsg"),
        )
        if kmsg is None:
            open(self._env["PITCREW_KMSG"], "a").close()
        self._overlay = overlay
        self._started = []

    def __enter__(self):
        self.health = self._start("agent", PITCREW_OVERLAY=self._overlay)
        try:
            wait_until(lambda: get(self.health, 1.0), 20.0, "the agent to serve", every=0.05)
        except TimeoutError as error:
            self.__exit__()
            raise RuntimeError("%s; its log ends: %s" % (error, self.log("agent")[-600:])) from None
        return self

    def __exit__(self, *_):
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, mode, **env):
        address = free_address()
        with open(self._log_path(mode), "wb") as log:
            env = dict(self._env, PITCREW_HEALTH=address, PITCREW_SELF=free_address(), **env)
            process = subprocess.Popen([self._binary, mode], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._started.append(process)
        return "http://%s/?verbose" % address

    def start_dcgm(self, library, **env):
        """The DCGM process, with a host engine of its own inside it."""
        return self._start("dcgm", PITCREW_DCGM_MODE="embedded", PITCREW_DCGM_LIBRARY=library, **env)

    def _log_path(self, mode):
        return os.path.join(self.directory, mode + ".log")

    def log(self, mode):
        with contextlib.suppress(OSError), open(self._log_path(mode), encoding="utf-8", errors="replace") as f:
            return f.read()
        return ""

    def scrape(self):
        return get("http://%s/metrics" % self._prometheus)

    def findings(self):
        """[(signal, unix time at which it was on disk, the event's data)] of what began, by the spool, oldest first."""
        spool, found = os.path.join(self._env["PITCREW_STATE_DIR"], "spool"), []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(spool):
                path = os.path.join(spool, name)
                if name.endswith(".event.json"):
                    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as f:
                        event = json.load(f)
                        if event.get("type") in ONSETS:
                            found.append((signal_of(event["data"]), os.stat(path).st_mtime_ns / 1e9, event["data"]))
        return sorted(found, key=lambda finding: finding[1])

    def processes(self):
        """{pid: GPU's UUID} of the processes that have a GPU open, as the agent said last."""
        return processes_in(self.log("agent"))


def signal_of(data):
    """The signal of an event, such as rank/dead."""
    return "%s/%s" % (data["cause"]["kind"], data["cause"]["name"])


_ATTRIBUTE = re.compile(r"-> ([\w.]+): \w+\((.*)\)$")


def processes_in(text):
    """The same from the debug exporter's text. A process whose last event says that it ended is not in it."""
    found, name, values = {}, "", {}
    for line in [*text.splitlines(), "LogRecord #"]:
        line = line.strip()
        if line.startswith("LogRecord #"):
            if name == "pitcrew.gpu.process":
                found[int(values["process.pid"])] = values.get("hw.id", "")
            elif name == "pitcrew.gpu.process_ended":
                found.pop(int(values["process.pid"]), None)
            name, values = "", {}
        elif line.startswith("EventName:"):
            name = line.partition(":")[2].strip()
        else:
            attribute = _ATTRIBUTE.search(line)
            if attribute:
                values[attribute.group(1)] = attribute.group(2)
    return found


_SERIES = re.compile(r"^([\w:]+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def series(text, name):
    """[(labels, value)] of a metric in the text format of Prometheus."""
    found = []
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match and match.group(1) == name:
            found.append((dict(_LABEL.findall(match.group(2))), float(match.group(3))))
    return found
