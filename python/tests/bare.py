"""The launcher without torch, for tests of what it does with its workers: starts in 0.1 s instead of 1 s."""

import sys

from pitcrew_torch import run

if __name__ == "__main__":
    sys.exit(run.main(warm_up=lambda preload: ("", True)))
