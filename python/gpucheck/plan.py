"""The measurements, in the order in which they run, and what the host must have for them."""

from .runner import Measurement

WHOLE = 475.0  # seconds for everything

PATIENCE = 25.0  # seconds that a measurement waits for one event
DRY_SLACK = 4  # times as long in a dry run: what else the machine does must not fail it, and its times mean nothing

# name, what it measures, limit in seconds, module:function. The limits, and the time to end what hangs, add up to less
# than the whole (a test holds that), so a hang of one takes no time from the others.
MEASUREMENTS = tuple(
    Measurement(*row)
    for row in (
        ("kmsg", "whether the kernel log can be read, here and by the agent", 10.0, "nodeview:kmsg"),
        ("nvml", "NVML by ctypes against nvidia-smi", 15.0, "nodeview:nvml_direct"),
        ("agent-processes", "processes on the GPU, the agent against nvidia-smi", 25.0, "nodeview:agent_processes"),
        ("dcgm", "ECC, MIG and throttle reasons through the agent and DCGM against nvidia-smi", 30.0, "nodeview:dcgm"),
        ("startup", "phases of a restart, until the first step after a checkpoint is loaded", 65.0, "startup:run"),
        ("hook-cost", "what the hook adds to a step, with CUDA events off and on", 60.0, "hookcost:run"),
        ("device-times", "the hook's phases and launch latency against torch.profiler", 40.0, "devicetimes:run"),
        ("nan-watch", "a loss that is not finite is seen without synchronization", 30.0, "nanwatch:run"),
        ("checkpoint-round", "hold and save of a checkpoint round of 1 GB", 60.0, "saveround:run"),
        ("kill", "SIGKILL of one of two ranks that share the GPU", 45.0, "failures:kill"),
        ("hang", "one of two ranks stopped, then one stuck on the GPU", 55.0, "failures:hang"),
    )
)


def named(name):
    return next(m for m in MEASUREMENTS if m.name == name)
