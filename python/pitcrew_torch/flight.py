"""Which collectives this rank has entered: asked when a step stands still, and compared across ranks by the node agent.

Promises: only this process reads its own flight recorder, as JSON and never as a pickle; no device is asked (NCCL's
recorder is read without its entries, which would query CUDA events); whatever a dump holds, the answer is small and
well-formed. On torch 1.13, whose gloo keeps no count, there is no answer.

`groups_in` needs no torch: it reads the JSON of `_dump_fr_trace_json` and `_dump_nccl_trace_json`, formats 2.x.
"""

import json

MOST_GROUPS = 16
MOST_TEXT = 120
MOST_DUMP = 16 << 20  # bytes; beyond that a dump is not read


def groups_in(dump):
    """A dump's process groups: {name: {"desc", "enqueued", "started", "completed", "op"}}, unknown numbers -1."""
    try:
        if len(dump) > MOST_DUMP:
            return {}
        dump = json.loads(dump)
    except (TypeError, ValueError, RecursionError):
        return {}
    if not isinstance(dump, dict):
        return {}
    names, newest = {}, {}
    entries = dump.get("entries")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("is_p2p"):
            continue
        group = entry.get("process_group")
        if not isinstance(group, list) or not group:
            continue
        name = _text(group[0])
        names[_text(entry.get("pg_id"))] = (name, _text(group[1]) if len(group) > 1 else "")
        if _number(entry.get("collective_seq_id")) >= _number(newest.get(name, {}).get("collective_seq_id")):
            newest[name] = entry
    status, config = dump.get("pg_status"), dump.get("pg_config")
    status = status if isinstance(status, dict) else {}
    config = config if isinstance(config, dict) else {}
    found = {}
    for id, state in list(status.items())[: 4 * MOST_GROUPS]:
        if not isinstance(state, dict):
            continue
        if id in names:
            name, desc = names[id]
        elif len(status) == len(config) == 1:  # without entries nothing else joins the two
            name, about = next(iter(config.items()))
            name, desc = _text(name), _text(about.get("desc")) if isinstance(about, dict) else ""
        else:
            continue
        found[name] = {
            "desc": desc,
            "enqueued": _number(state.get("last_enqueued_collective")),
            "started": _number(state.get("last_started_collective")),
            "completed": _number(state.get("last_completed_collective")),
            "op": _op(newest.get(name)),
        }
    for name, entry in newest.items():  # a version that tells no status
        if name not in found and len(found) < 4 * MOST_GROUPS:
            number = _number(entry.get("collective_seq_id"))
            found[name] = {"desc": "", "enqueued": number, "started": -1, "completed": -1, "op": _op(entry)}
    return found


def _number(value):
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if 0 <= number < 1 << 62 else -1


def _text(value):
    return "" if value is None else str(value)[:MOST_TEXT]


def _op(entry):
    if entry is None:
        return ""
    sizes = entry.get("input_sizes")
    return _text("%s %s" % (_text(entry.get("profiling_name")), json.dumps(sizes)[:60] if sizes else "")).strip()


def ranges(ranks):
    """[0, 1, 2, 5] as "0-2,5"; "" where that would be long."""
    parts = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    text = ",".join(str(a) if a == b else "%d-%d" % (a, b) for a, b in parts)
    return text if len(text) <= 400 else ""


def read():
    """This rank's process groups, those with something under way first: the `groups` of a `collectives` message."""
    from torch import _C
    from torch.distributed import distributed_c10d

    if not distributed_c10d.is_initialized() or not hasattr(distributed_c10d, "_world"):
        return []
    world, c10d = distributed_c10d._world, _C._distributed_c10d
    recorded = {}
    for dump, entries in (("_dump_nccl_trace_json", False), ("_dump_fr_trace_json", True)):
        if hasattr(c10d, dump):
            recorded.update(groups_in(getattr(c10d, dump)(includeCollectives=entries)))
    found = []
    for group, name in list(world.pg_names.items()):
        known = recorded.get(name, {})
        ranks = list(world.pg_group_ranks.get(group, ()))
        try:
            enqueued = _number(group._get_sequence_number_for_group())
        except RuntimeError:  # a backend that does not count
            enqueued = -1
        found.append(
            {
                "name": _text(name),
                "desc": known.get("desc") or _text(getattr(group, "group_desc", "")),
                "ranks": ranges(ranks),
                "size": len(ranks),
                "enqueued": max(enqueued, known.get("enqueued", -1)),
                "started": known.get("started", -1),
                "completed": known.get("completed", -1),
                "op": known.get("op", ""),
            }
        )
    found = [g for g in found if g["enqueued"] >= 0]
    found.sort(key=lambda g: (g["completed"] >= g["enqueued"], -g["enqueued"]))
    return found[:MOST_GROUPS]
