"""STAND-IN for train.py on machines where no torch can be had. It trains nothing worth having.

Real here: the hook's ring, sockets, rounds and checkpoint files (the same code, which needs no torch), the processes,
and the ranks' dependence on each other: they exchange numbers each step, so one that dies or hangs takes the others
with it, as a collective does. Not real: torch, gloo, the model. The GPU is simulated as in train.py, and its settings
apply.
"""

import json
import math
import os
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

from pitcrew_torch.hook import Hook

from simgpu import SimulatedGPU

WIDTH = 16


class Ring0:
    """The ranks' exchange: every rank sends to rank 0, rank 0 answers all. Blocks and breaks as a collective does."""

    def __init__(self, rank, world_size, addr, port):
        self._rank = rank
        if rank == 0:
            listening = socket.create_server(("", port), backlog=world_size)
            self._peers = [listening.accept()[0] for _ in range(world_size - 1)]
            listening.close()
        else:
            self._peers = [self._dial(addr, port)]
        for peer in self._peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def _dial(addr, port):
        while True:
            try:
                return socket.create_connection((addr, port))
            except OSError:
                time.sleep(0.01)

    @staticmethod
    def _send(peer, value):
        data = json.dumps(value).encode()
        peer.sendall(struct.pack("<I", len(data)) + data)

    def _receive(self, peer):
        (size,) = struct.unpack("<I", self._exactly(peer, 4))
        return json.loads(self._exactly(peer, size))

    @staticmethod
    def _exactly(peer, size):
        data = b""
        while len(data) < size:
            part = peer.recv(size - len(data))
            if not part:
                raise RuntimeError("connection closed by peer")
            data += part
        return data

    def reduce(self, value, how):
        """how(all ranks' values) on every rank."""
        if self._rank:
            self._send(self._peers[0], value)
            return self._receive(self._peers[0])
        result = how([value, *(self._receive(peer) for peer in self._peers)])
        for peer in self._peers:
            self._send(peer, result)
        return result

    def share(self, value):  # what the hook's chooser asks of an exchange
        return self.reduce(value, lambda values: values[0] if self._rank == 0 else None)

    def worst(self, verdict, text=""):
        return self.reduce([verdict, text], max)

    def progress(self, count=0):
        pass


def main():
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    print(
        "STAND-IN TRAINER, rank %d: no torch here, nothing is trained (see standin.py)" % rank,
        file=sys.stderr,
        flush=True,
    )
    gang = Ring0(
        rank, world_size, os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", 29500))
    )
    weights = [math.sin(i + 1) for i in range(WIDTH)]

    def save(context):
        if context.is_writer:
            with context.open("model.json") as f:
                f.write(json.dumps([w.hex() for w in weights]).encode())
        with context.open("rank-%d.state.json" % rank) as f:
            f.write(b"{}")

    def load(context):
        with open(os.path.join(context.directory, "model.json"), encoding="utf-8") as f:
            weights[:] = [float.fromhex(w) for w in json.load(f)]

    env = os.environ
    hook = Hook(
        save,
        load,
        checkpoint_dir=env.get("CKPT_DIR") or env.get("PITCREW_CKPT_DIR"),
        checkpoint_every=int(env.get("CKPT_EVERY", 20)),
        exchange=lambda: gang,
        torch_version="stand-in",
    )
    gpu = SimulatedGPU(env.get("PITCREW_SIM_GPU", ""), hook.local_rank)
    seconds, total = float(env.get("STEP_SECONDS", 0.1)), int(env.get("TOTAL_STEPS", 1_000_000))
    log = None
    if env.get("PITCREW_TRAIN_LOG"):
        os.makedirs(env["PITCREW_TRAIN_LOG"], exist_ok=True)
        log = open(os.path.join(env["PITCREW_TRAIN_LOG"], "rank-%d.log" % rank), "a", buffering=1)
    start = hook.resume()
    print("rank %d: attempt %d, from step %d" % (rank, hook.attempt, start), flush=True)
    for step in range(start, total):
        began = time.monotonic()
        gpu.touch()
        mine = [w * math.cos(step * WIDTH + i + rank) for i, w in enumerate(weights)]
        mean = gang.reduce(mine, lambda all: [math.fsum(column) / len(all) for column in zip(*all)])
        weights[:] = [w - 0.01 * g for w, g in zip(weights, mean)]
        loss = math.fsum(w * w for w in weights) + rank
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        if log is not None:
            log.write("%d %s %d %d %.6f\n" % (step + 1, loss.hex(), hook.attempt, rank, time.time()))
        hook.step(loss, samples=1)
    hook.close()


if __name__ == "__main__":
    main()
