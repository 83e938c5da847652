"""A flight recorder's dump, and what must hold of the answer to any bytes in its place.

The NCCL dump was written by hand after the format's documentation (2.5): no GPU was at hand to record one."""

from pitcrew_torch import flight


def entry(pg_id, name, seq, op="nccl:all_reduce", **more):
    return dict(
        {
            "frames": [],
            "record_id": seq,
            "pg_id": pg_id,
            "process_group": [name, "default_pg"],
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq,
            "profiling_name": op,
            "input_sizes": [[4]],
            "state": "scheduled",
            "is_p2p": False,
        },
        **more,
    )


def status(enqueued, started, completed):
    pairs = zip(("enqueued", "started", "completed"), (enqueued, started, completed))
    return {"last_%s_collective" % k: v for k, v in pairs}


NCCL = {
    "version": "2.5",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        "7": {"name": "7", "desc": "tp", "ranks": "[0]"},
    },
    "pg_status": {"0": status(12, 11, 10), "1": status("5", "5", "5")},
    "entries": [
        entry(0, "0", 11),
        entry(0, "0", 12, "nccl:reduce_scatter"),
        entry(1, "7", 5),
        entry(0, "0", 99, is_p2p=True),
    ],
}


ODD = [None, -1, 1 << 80, "x" * 10_000, [], {}, [[]], True, 1e999, float("nan"), "\ud800"]


def mangled(value, generator):
    """A copy with some of its parts gone or something else."""
    if generator.random() < 0.05:
        return generator.choice(ODD)
    if isinstance(value, dict):
        return {k: mangled(v, generator) for k, v in value.items() if generator.random() > 0.03}
    if isinstance(value, list):
        return [mangled(v, generator) for v in value]
    return value


def assert_small_and_wellformed(dump):
    found = flight.groups_in(dump)
    assert len(found) <= 4 * flight.MOST_GROUPS
    for name, group in found.items():
        assert isinstance(name, str) and len(name) <= flight.MOST_TEXT
        assert set(group) == {"desc", "enqueued", "started", "completed", "op"}
        assert all(type(group[k]) is int and -1 <= group[k] < 1 << 62 for k in ("enqueued", "started", "completed"))
        assert all(isinstance(group[k], str) and len(group[k]) <= flight.MOST_TEXT for k in ("desc", "op"))
