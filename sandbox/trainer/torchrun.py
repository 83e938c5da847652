"""Stock torchrun, unchanged, made to start on Debian's torch 1.13 with Python 3.11.

There `Std.from_str` compares an IntFlag's text, which Python 3.11 writes as a number, and torchrun refuses its own
defaults. This repairs that one function where it is broken and runs torch.distributed.run.
"""

import sys

from torch.distributed.elastic.multiprocessing import api


def _from_str(cls, text):
    names = {str(int(member)): member for member in cls}
    if text in names:
        return names[text]
    mapping = {}
    for part in text.split(","):
        index, separator, value = part.partition(":")
        if not separator or value not in names or not index.isdigit():
            raise ValueError("%r is not a number of Std or a list like 0:1,1:3" % (text,))
        mapping[int(index)] = names[value]
    return mapping


def repair():
    try:
        api.Std.from_str("0")
    except Exception:
        api.Std.from_str = classmethod(_from_str)


if __name__ == "__main__":
    repair()
    from torch.distributed.run import main

    sys.exit(main())
