"""The GPU check: what the hook and the agent do on a real NVIDIA GPU, measured in one command.

    PYTHONPATH=python python3 -m gpucheck [--out FILE] [--only NAME ...]

It needs Python, torch and bin/pitcrew-collector; no network, no Kubernetes, no pip. Each measurement runs in a session
of its own under a time limit, so one that hangs or crashes loses only itself. Without a GPU, the same code runs as a
dry run on CPU twins and simulated drivers. Its figures carry the label `cpu dry run` and never share a table or a file
with figures of a GPU. docs/gpu-check.md describes the measurements.
"""

GPU = "gpu"
DRY = "cpu dry run"
"""The label of every figure that was taken without a GPU."""
