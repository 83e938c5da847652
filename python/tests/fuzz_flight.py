"""Any bytes in place of a flight recorder's dump, guided by coverage: sandbox/fuzz.sh runs it. Needs atheris."""

import json
import os
import random
import sys

import atheris

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.dirname(here)]

with atheris.instrument_imports(include=["pitcrew_torch", "json"]):
    from dumps import NCCL, assert_small_and_wellformed, mangled


def mutated(data, most, seed):
    """Every second time a change of bytes, else one of what they say: changed bytes are seldom JSON."""
    generator = random.Random(seed)
    try:
        if generator.random() < 0.5:
            return json.dumps(mangled(json.loads(data), generator)).encode()[:most]
    except (ValueError, RecursionError):
        pass
    return atheris.Mutate(data, most)


if __name__ == "__main__":
    corpus = sys.argv[1]  # libFuzzer keeps what it finds there
    with open(os.path.join(corpus, "nccl.json"), "w") as seed:
        json.dump(NCCL, seed)
    atheris.Setup(sys.argv, assert_small_and_wellformed, custom_mutator=mutated)
    atheris.Fuzz()
