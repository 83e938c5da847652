"""One rank with the real hook and no torch: steps every 10 ms until told otherwise, saves a few bytes."""

import os
import sys
import time

from pitcrew_torch.hook import Hook


frozen = os.path.join(sys.argv[1], "frozen")
write = os.pwrite


def pwrite(*args):
    """While the file `frozen` exists, the disk of the copied ring stands still."""
    while os.path.exists(frozen):
        time.sleep(0.01)
    return write(*args)


os.pwrite = pwrite


def save(ctx):
    with ctx.open("rank-%d.bin" % ctx.rank) as f:
        f.write(b"step %d of rank %d" % (ctx.step, ctx.rank))


def main():
    hook = Hook(save_fn=save, checkpoint_dir=sys.argv[1], strategy="ddp")
    print("ready", flush=True)
    end = os.path.join(sys.argv[1], "end-%s" % os.environ["RANK"])
    while True:
        time.sleep(0.01)
        hook.step(loss=0.25)
        if os.path.exists(end):
            with open(end) as f:
                if f.read() == "raise":
                    raise RuntimeError("boom")
            break
    hook.close()


main()
