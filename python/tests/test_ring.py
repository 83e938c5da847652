"""The ring and its golden files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pitcrew_torch import ring

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "hook" / "testdata"


def test_the_golden_files_are_what_this_code_writes(tmp_path):
    subprocess.run([sys.executable, str(ROOT / "python" / "tools" / "make_golden.py"), str(tmp_path)], check=True)
    names = sorted(os.listdir(tmp_path))
    assert names == ["messages.jsonl", "ring-v1.bin", "ring-v1.json"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes(), "run python/tools/make_golden.py"


def test_a_ring_is_put_in_place_whole_and_a_readers_old_file_stays_readable(tmp_path):
    path = str(tmp_path / "local-0.ring")
    first = ring.Ring.create(path, rank=0, attempt=1)
    with open(path, "rb") as reader:
        ring.Ring.create(path, rank=0, attempt=2)
        first.record(1, 10, 5)
        assert ring.parse(reader.read())["header"]["step"] == 1
    assert ring.read(path)["header"]["attempt"] == 2
    assert os.listdir(tmp_path) == ["local-0.ring"]


def test_the_ring_keeps_the_newest_records():
    r = ring.Ring.create(None, capacity=4)
    for step in range(1, 11):
        r.record(step, step, 1)
    found = ring.parse(bytes(r._buffer))
    assert [x["step"] for x in found["records"]] == [7, 8, 9, 10]
    assert found["header"]["records"] == 10


def test_a_loss_that_comes_late_goes_to_its_own_record_only():
    r = ring.Ring.create(None, capacity=4)
    first = r.record(1, 1, 1)
    second = r.record(2, 2, 1)
    r.amend(second, ring.RECORD_LOSS, loss=0.5)
    for step in range(3, 6):
        r.record(step, step, 1)
    r.amend(first, ring.RECORD_LOSS, loss=9.0)  # overwritten by step 5: nothing to amend
    losses = {x["step"]: (x["loss"], x["flags"]) for x in ring.parse(bytes(r._buffer))["records"]}
    assert losses == {2: (0.5, 1), 3: (0.0, 0), 4: (0.0, 0), 5: (0.0, 0)}


def test_a_record_without_phases_keeps_nothing_of_the_one_before_in_its_place():
    r = ring.Ring.create(None, capacity=1)
    r.record(1, 10, 5, 1, 3, 0.5, 0.25, 7, (1, 2, 3, 4, 5))
    r.amend(1, launch=6)
    phases = ["data_ns", "forward_ns", "backward_ns", "optimizer_ns", "comm_ns", "launch_ns"]
    (full,) = ring.parse(bytes(r._buffer))["records"]
    assert [full[n] for n in phases] == [1, 2, 3, 4, 5, 6]
    r.record(2, 20, 6, 1, 3, 1.5, 1.25, 8)
    (brief,) = ring.parse(bytes(r._buffer))["records"]
    assert [brief[n] for n in phases] == [0] * 6
    rest = ["seq", "step", "end_ns", "duration_ns", "section", "flags", "loss", "grad_norm", "samples"]
    assert [brief[n] for n in rest] == [2, 2, 20, 6, 1, 3, 1.5, 1.25, 8]


def test_a_record_is_final_at_once_unless_values_come_late():
    r = ring.Ring.create(None, capacity=4)
    assert ring.parse(bytes(r._buffer))["header"]["flags"] & ring.FLAG_SETTLES
    r.record(1, 1, 1)
    assert ring.parse(bytes(r._buffer))["header"]["settled"] == ring.ALL
    r.settle(1)
    r.record(2, 2, 1)
    header = ring.parse(bytes(r._buffer))["header"]
    assert (header["records"], header["settled"]) == (2, 1)
    r.settle()
    assert ring.parse(bytes(r._buffer))["header"]["settled"] == ring.ALL


def test_text_is_cut_at_a_character_and_always_ends_in_nul():
    r = ring.Ring.create(None)
    r.section("é" * 40, 1)
    r.error("x" * 1000 + "\nsecond line")
    header = ring.parse(bytes(r._buffer))["header"]
    assert header["section_name"] == "é" * 15
    assert header["last_error"] == "x" * 255
    assert header["section"] == ring.OTHER


def test_a_capacity_that_is_no_power_of_two_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        ring.Ring.create(None, capacity=1000)


def test_every_header_field_lies_where_the_contract_says():
    text = (ROOT / "docs" / "hook-protocol.md").read_text()
    tables = [[]]  # of the page, those whose rows begin with an offset
    for line in text.splitlines():
        cells = line.split("|")
        if line.startswith("| ") and cells[1].strip().isdigit():
            tables[-1].append(cells[1:3])
        elif tables[-1]:
            tables.append([])
    contract = {(int(offset), kind.strip()) for offset, kind in tables[0]}  # the header comes first
    kinds = {"I": "u32", "Q": "u64", "d": "f64"}
    ours = {(offset, kinds.get(fmt) or "char[%s]" % fmt[:-1]) for offset, fmt in ring.HEADER.values()}
    assert ours == contract
