"""The phases of a restart: from the start of the interpreter to the first step after the checkpoint is loaded."""

import os
import time

from . import agent, jobs


def run(context, report):
    nccl = context.device == "cuda"
    checkpoints, log = os.path.join(context.work, "ckpt"), os.path.join(context.work, "job-log")
    settings = {
        "JOB_LOG": log,
        "JOB_CHECKPOINTS": checkpoints,
        "JOB_WIDTH": context.size(4096, 64),
        "JOB_LAYERS": context.size(8, 2),
        "JOB_NCCL": int(nccl),
        "TORCHELASTIC_RUN_ID": "gpu-check",
        "PITCREW_DIR": context.memory,
    }
    runs = context.size(4, 1)
    for attempt in range(runs + 1):
        first = attempt == 0
        settings.update(JOB_STEPS=1, JOB_SAVE_EVERY=int(first), PITCREW_ATTEMPT=attempt)
        env = jobs.environment(context, MASTER_PORT=agent.free_address().rpartition(":")[2], **settings)
        began = time.monotonic()
        jobs.ended_well(jobs.alone(env), context.patience, "start %d" % attempt)
        if first:
            report.fact("seconds of the first start, which writes the checkpoint", round(time.monotonic() - began, 3))
    found = [line for line in jobs.lines(log, 0, "phases") if line["attempt"] > 0]
    report.check("every restart resumed from the checkpoint", [2] * runs, [line["step"] for line in found])
    for name in found[0]["seconds"]:
        report.figure("restart: " + name, "s", [line["seconds"][name] for line in found])
    report.figure("restart: whole, until the first step", "s", [sum(line["seconds"].values()) for line in found])
