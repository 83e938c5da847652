"""Packs what a GPU host needs for the check, and holds its size.

    PYTHONPATH=python python3 -m gpucheck.bundle [--out bench/out/gpu-check.tar.gz]

There: tar xzf gpu-check.tar.gz && make gpu-check
"""

import argparse
import os
import sys
import tarfile

from .agent import BINARY

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FILES = ("Makefile", os.path.join("python", "pitcrew_torch"), os.path.join("python", "gpucheck"), BINARY)
LIMIT = 60 << 20  # bytes, compressed


class TooLarge(Exception):
    """The bundle does not fit where GPU hosts take it."""


def pack(out, root=ROOT, limit=LIMIT, level=6):
    """Writes the archive; gives its bytes. Raises TooLarge, and leaves no archive, above the limit."""
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    with tarfile.open(out, "w:gz", compresslevel=level) as archive:
        for name in FILES:
            archive.add(os.path.join(root, name), name, filter=kept)
    size = os.path.getsize(out)
    if size > limit:
        os.remove(out)
        raise TooLarge("the bundle is %.1f MiB compressed, at most %.1f: %s" % (size / 2**20, limit / 2**20, FILES))
    return size


def kept(member):
    return None if "__pycache__" in member.name else member


def main():
    p = argparse.ArgumentParser(prog="python3 -m gpucheck.bundle")
    p.add_argument("--out", default=os.path.join(ROOT, "bench", "out", "gpu-check.tar.gz"))
    out = p.parse_args().out
    try:
        size = pack(out)
    except (TooLarge, FileNotFoundError) as error:
        print("gpu-bundle: %s" % error, file=sys.stderr)
        return 1
    print("gpu-bundle: %s, %.1f MiB of at most %d" % (out, size / 2**20, LIMIT >> 20))
    return 0


if __name__ == "__main__":
    sys.exit(main())
