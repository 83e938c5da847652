"""Stock torchrun, unchanged, made to start on torch 1.13 with Python 3.11 (as Debian 12 ships them).

There `Std.from_str` looks for a flag by iterating over the IntFlag, which since Python 3.11 skips 0 and combinations:
torchrun's own defaults become None. Here that one function is repaired, where it is broken, and torch.distributed.run
runs.
"""

import sys

from torch.distributed.elastic.multiprocessing import api


def _from_str(cls, text):
    if text.isdigit():
        return cls(int(text))
    pairs = (part.split(":") for part in text.split(","))
    return {int(local_rank): cls(int(value)) for local_rank, value in pairs}


def repair():
    if api.Std.from_str("0") is None:
        api.Std.from_str = classmethod(_from_str)


if __name__ == "__main__":
    repair()
    from torch.distributed.run import main

    sys.exit(main())
