"""Faults in every file call of saver, chooser, claims and prune; afterward no complete checkpoint may be lost.

    python3 python/tests/faults/driver.py --cases 5000

One case: a gang of 1, 2 or 8 ranks (threads) runs an attempt on a copy of a prepared directory. One file call of one of
its threads fails (once or from then on), crashes the process, finds the disk full, or stalls while a later attempt
claims the directory and saves. Then, without faults, a new attempt resumes. It must find the newest checkpoint that was
complete before, or a later one, with its content. fault.c is preloaded and makes the real calls fail; each case is a
fork."""

import argparse
import collections
import faulthandler
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", ".."), os.path.join(HERE, "..")]

from breaks import BREAKS  # noqa: E402
from cases import ERROR, NEEDED_BY, PASSING, STALL, Case, cases, sample  # noqa: E402
from ranks import SECONDS, Broken, Gang, listing, manifests, prepare  # noqa: E402
from shim import number_threads, preloaded, shim  # noqa: E402

from pitcrew_torch import checkpoint, claims, saver, storage  # noqa: E402

FENCED, CRASHED = 76, 99


def attempt(case, root, lib, say):
    """The child: attempt 2 under the fault. say(text, value) reaches the parent also if the process dies next."""

    def fenced(error):
        if lib.fault_stalled():
            done.wait(SECONDS)  # in truth the later attempt is another process
        say("fenced", str(error))
        os._exit(FENCED)

    done = threading.Event()

    gang = Gang(root, case.world, 2, fenced, faulty=True)
    lib.fault_arm(root.encode(), case.kind, case.number, case.call, case.thread, case.times)
    if case.kind == STALL:
        threading.Thread(target=succeed, args=(case, root, lib, say, done), daemon=True).start()
    got = gang.resume(lib, read_only=case.scenario == "reader")
    if isinstance(got, Exception):
        say("raised", [type(got).__name__, str(got)])
    else:
        say("resumed", got and got["step"])
        if case.scenario == "attempt":
            for step, save in ((40, gang.periodic), (45, gang.round), (50, gang.periodic)):
                if save(lib, step):
                    say("complete", step)
            gang.end()
    say("counted", [[t, lib.fault_count(t)] for t in range(64) if lib.fault_count(t)])
    say("hits", lib.fault_hits())
    if case.call == 0:
        names = [lib.fault_name(i) for i in range(8192)]
        say("calls", [n.decode(errors="replace") for n in names if n])
    if case.kind == STALL and lib.fault_stalled():
        say("overtaken", True)


def succeed(case, root, lib, say, done):
    """While attempt 2 stalls, attempt 3 takes the directory over and saves. Then attempt 2 goes on."""
    while not lib.fault_stalled():
        time.sleep(0.0005)
    if case.scenario == "attempt":
        later = Gang(root, case.world, 3, lambda error: say("broken", "attempt 3 was fenced: %s" % error))
        got = later.resume(lib)
        say("later resumed", got["step"] if isinstance(got, dict) else repr(got))
        say("manifests", manifests(root))
        say("later complete", later.periodic(lib, 60))
        later.end()
    done.set()
    lib.fault_release()


def told(case, root, lib):
    """Run the case in a fork. (what it said, its exit status)."""
    until = time.monotonic() + 10  # a fork takes along the locks of other threads
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.001)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        faulthandler.dump_traceback_later(SECONDS - 5)

        def say(what, value):
            os.write(write, json.dumps([what, value]).encode() + b"\n")

        try:
            attempt(case, root, lib, say)
        except Broken as error:
            say("broken", str(error))
        except BaseException as error:
            say("broken", "%s: %s" % (type(error).__name__, error))
        os._exit(0)
    os.close(write)
    kill = threading.Timer(SECONDS, os.kill, (pid, 9))
    kill.start()
    with os.fdopen(read, "rb") as f:
        lines = [json.loads(line) for line in f.read().splitlines()]
    _, status = os.waitpid(pid, 0)
    kill.cancel()
    kill.join()
    return lines, os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status >> 8


def check(case, template, lib, scratch):
    """Run a case and judge what it left. Gives what it said; raises Broken."""
    root = os.path.join(scratch, "root")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template, root)
    lines, code = told(case, root, lib)
    said = collections.defaultdict(list)
    for what, value in lines:
        said[what].append(value)
    if code == -9:
        raise Broken("it hangs: %d s; the stacks of all its threads are on stderr" % SECONDS)
    if said["broken"] or code not in (0, FENCED, CRASHED):
        raise Broken("%s (exit code %d)" % (said["broken"], code))
    judge_resume(case, said)
    if case.scenario == "reader":
        before, after = listing(template), listing(root)
        if before != after:
            raise Broken("a reader changed %s" % sorted(k for k in {*before, *after} if before.get(k) != after.get(k)))
    overtaken = bool(said["later resumed"])
    least = max([20, *said["complete"]])
    if overtaken:
        if said["later resumed"][0] not in (20, 40, 45, 50) or said["later complete"] != [True]:
            raise Broken(
                "the later attempt resumed from %s, saved: %s" % (said["later resumed"], said["later complete"])
            )
        late = set(manifests(root)) - set(said["manifests"][0])
        if len(late) > 1:
            raise Broken(
                "the earlier attempt completed %s after the later one had claimed the directory" % sorted(late)
            )
    gang = Gang(root, case.world, 4, lambda error: None)
    got = gang.resume(lib)
    gang.end()
    if not isinstance(got, dict):
        raise Broken("the next attempt found nothing: %r" % (got,))
    if (overtaken and got["step"] != 60) or got["step"] < least:
        raise Broken(
            "the next attempt resumed from %d, not from %d or later" % (got["step"], 60 if overtaken else least)
        )
    aside = [n for n in os.listdir(root) if checkpoint.QUARANTINE in n and not n.startswith("step-30.attempt-1.")]
    if aside:
        raise Broken("sound checkpoints were set aside: %s" % aside)
    return said


def judge_resume(case, said):
    for name, text in said["raised"]:
        if name not in ("Unreadable", "ClaimRefused", "Fenced"):
            raise Broken("resume raised %s: %s" % (name, text))
        if case.kind == ERROR and case.times == 1 and case.number in PASSING and "fsync" not in text:
            raise Broken("one error that passed made resume raise: %s" % text)
    for step in said["resumed"]:
        if step not in ((20, 40, 45, 60) if case.kind == STALL else (20,)):
            raise Broken("resumed from %s, not from 20" % step)


def speed_up():
    storage.DELAYS = storage.IN_A_STEP = (0.0005, 0.0005)
    saver.POLL = (0.0005, 0.01)
    saver.Saver._given_up = Gang.given_up
    claims.BEAT_EVERY = 3600.0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=5000, help="0 for all there are")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="K/N: only every Nth case, from the Kth")
    parser.add_argument(
        "--break", dest="broken", default="", choices=["", *BREAKS], help="remove a protection: must fail"
    )
    parser.add_argument("--only", default="", choices=["", *NEEDED_BY], help="only cases that need this protection")
    parser.add_argument("--worlds", default="1,2,8", help="numbers of ranks")
    parser.add_argument("--one", default="", help="one case, as printed for a failure in parentheses")
    parser.add_argument("--worst", type=int, default=5, help="failures to print")
    options = parser.parse_args(argv)
    if "fault" not in os.environ.get("LD_PRELOAD", ""):
        return preloaded(argv)
    speed_up()
    lib = shim()
    number_threads(lib)
    scratch = tempfile.mkdtemp(prefix="pitcrew-faults-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        return run(options, lib, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(options, lib, scratch):
    templates, counts = {}, {}
    for world in map(int, options.worlds.split(",")):
        templates[world] = os.path.join(scratch, "template-%d" % world)
        os.mkdir(templates[world])
        pid = os.fork()  # the threads that save end with it
        if pid == 0:
            try:
                prepare(templates[world], world, lib)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            raise Broken("the template for %d ranks could not be made" % world)
        for scenario in ("attempt", "reader"):
            said = check(Case(scenario, world, 0, 0, 0, 0, 0), templates[world], lib, scratch)
            counts[scenario, world] = said["counted"][0]
    BREAKS.get(options.broken, lambda: None)()
    every = cases(counts, options.seed)
    if options.only:
        every = [case for case in every if case.world < 8 and NEEDED_BY[options.only](case)]
    every = sample(every, options.cases, random.Random(options.seed), even=bool(options.only))
    if options.one:
        scenario, *numbers = options.one.split(",")
        every = [Case(scenario, *map(int, numbers))]
    k, n = map(int, options.part.split("/"))
    mine, failed, hit = every[k::n], [], 0
    for case in mine:
        try:
            said = check(case, templates[case.world], lib, scratch)
            hit += bool(not said["hits"] or said["hits"][-1])  # one that died or was fenced was hit
        except Broken as error:
            failed.append((case, error))
            if len(failed) <= options.worst:
                print("BROKEN: %s:\n    %s" % (case, error), flush=True)
    calls = {"%s, %d ranks" % key: sum(c for _, c in value) for key, value in counts.items()}
    print(json.dumps({"cases": len(mine), "hit": hit, "failed": len(failed), "calls": calls, "seed": options.seed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
