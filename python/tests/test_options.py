"""The launcher's command line against torchrun's."""

import pytest

from pitcrew_torch import options


def parse(*argv, **environ):
    notes = []
    return options.parse(list(argv), environ, notes.append), notes


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (["t.py"], {}, {"nproc": 1, "nnodes": 1, "node_rank": 0, "master_addr": "127.0.0.1", "master_port": 29500}),
        (["--nproc-per-node=4", "t.py"], {}, {"nproc": 4}),
        (["--nproc_per_node", "4", "t.py"], {}, {"nproc": 4}),
        (["--nnodes=2", "--node_rank=1", "t.py"], {}, {"nnodes": 2, "node_rank": 1}),
        (["--nnodes=2:2", "--node-rank=1", "t.py"], {}, {"nnodes": 2, "node_rank": 1}),
        (["--nnodes=3", "t.py"], {"JOB_COMPLETION_INDEX": "2"}, {"node_rank": 2}),
        (
            ["t.py"],
            {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "8"},
            {"nnodes": 3, "node_rank": 2, "nproc": 8},
        ),
        (["--nnodes=3", "t.py"], {}, {"node_rank": None}),
        (["--master-addr=a", "--master_port=7", "t.py"], {}, {"master_addr": "a", "master_port": 7}),
        (
            ["--rdzv-endpoint=h:77", "--rdzv_backend=c10d", "--rdzv-id=9", "t.py"],
            {},
            {"master_addr": "h", "master_port": 77, "run_id": "9"},
        ),
        (["--rdzv_endpoint=h", "t.py"], {}, {"master_addr": "h", "master_port": 29500}),
        (["--rdzv-endpoint=[fd00::1]:77", "t.py"], {}, {"master_addr": "fd00::1", "master_port": 77}),
        (["t.py"], {"PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "5"}, {"master_addr": "m", "master_port": 5}),
        (
            ["-m", "pkg.train", "--nproc-per-node", "3"],
            {},
            {"module": True, "script": "pkg.train", "args": ["--nproc-per-node", "3"], "nproc": 1},
        ),
        (
            ["--max-restarts=3", "--preload=a,b", "--preload", "c", "t.py"],
            {},
            {"max_restarts": 3, "preload": ("a", "b", "c")},
        ),
        (
            ["t.py"],
            {"PITCREW_DIR": "/p", "PITCREW_JOB_UID": "u", "PITCREW_HEAL_WAIT": "7"},
            {"directory": "/p", "job_uid": "u", "heal_wait": 7.0},
        ),
        (["t.py"], {"PET_STANDALONE": "1", "PET_MODULE": "1"}, {"master_addr": "127.0.0.1", "module": True}),
        (
            ["t.py"],
            {"PET_STANDALONE": "0", "PET_MODULE": "", "PET_MAX_RESTARTS": ""},
            {"module": False, "max_restarts": 0},
        ),
        (["t.py"], {"PET_MAX_RESTARTS": "4", "PET_NO_PYTHON": "0"}, {"max_restarts": 4}),
        (["--nnodes=4", "--rdzv-backend=c10d", "t.py"], {"SLURM_NODEID": "3"}, {"node_rank": 3}),
        (["--nnodes=4", "--node-rank=1", "t.py"], {"SLURM_NODEID": "3", "JOB_COMPLETION_INDEX": "2"}, {"node_rank": 1}),
        (["t.py"], {"SLURM_NODEID": "3"}, {"node_rank": 0}),
        (["--shutdown-timeout=30", "t.py"], {"PITCREW_TERM_GRACE": "7"}, {"term_grace": 30.0}),
        (["t.py"], {"PITCREW_TERM_GRACE": "7"}, {"term_grace": 7.0}),
        (["--signals-to-handle=SIGTERM,SIGUSR1", "t.py"], {}, {"signals": ("SIGTERM", "SIGUSR1")}),
        (["t.py"], {"PITCREW_DIR": ""}, {"directory": None, "agent_wait": 2.0, "heal_wait": 120.0}),
    ],
)
def test_flags_and_environment_mean_what_they_mean_to_torchrun(argv, environ, expected):
    got, notes = parse(*argv, **environ)
    assert {name: getattr(got, name) for name in expected} == expected
    assert notes == []


@pytest.mark.parametrize(
    "argv",
    [
        "t.py --nproc-per-node 3 -m x",
        "--nproc_per_node 3 t.py -- -m",
        "-m pkg.t a b",
        "--max_restarts 2 --monitor_interval 1 --rdzv_id 5 --nnodes 2:2 --node_rank 1 t.py --x",
        "--nnodes 2 --node_rank 0 --master_addr h --master_port 4 --log_dir l -r 1 -t 0:1 --role r t.py",
    ],
)
def test_torchruns_own_parser_reads_the_same(argv):
    theirs = pytest.importorskip("torch.distributed.run").parse_args(argv.split())
    ours, _ = parse(*argv.split())
    assert (ours.script, ours.args, ours.module) == (theirs.training_script, theirs.training_script_args, theirs.module)
    assert (ours.max_restarts, ours.node_rank) == (theirs.max_restarts, theirs.node_rank)
    assert str(ours.nproc) == str(theirs.nproc_per_node) and str(ours.nnodes) == str(theirs.nnodes).split(":")[0]
    port = theirs.master_port or 29500  # torch 2.15 leaves it open
    assert (ours.master_addr, ours.master_port) == (theirs.master_addr, port)


def test_standalone_takes_a_free_port():
    got, _ = parse("--standalone", "t.py")
    assert got.master_addr == "127.0.0.1" and 20000 <= got.master_port < 30000


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--no-python", "t.py"], "--no-python"),
        (["--nnodes=1:4", "t.py"], "elastic range"),
        (["--nnodes=two", "t.py"], "--nnodes two"),
        (["--nproc-per-node=many", "t.py"], "--nproc-per-node many"),
        (["--standalone", "--nnodes=2", "t.py"], "--standalone"),
        (["--rdzv-backend=etcd", "t.py"], "etcd"),
        (["--nnodes=2", "--node-rank=2", "t.py"], "node rank"),
        (["--master-port=x", "t.py"], "master port"),
        (["--no-such-flag", "t.py"], "no-such-flag"),
        (["--virtual-local-rank", "t.py"], "LOCAL_RANK"),
        (["--max-restarts=-1", "t.py"], "--max-restarts"),
        (["--shutdown-timeout=inf", "t.py"], "--shutdown-timeout"),
        (["--signals-to-handle=SIGKILL", "t.py"], "SIGKILL"),
        (["--signals-to-handle=SIGNOT", "t.py"], "SIGNOT"),
        ([], "script"),
    ],
)
def test_what_cannot_work_is_refused_by_name(argv, says, capsys):
    with pytest.raises(SystemExit) as refused:
        parse(*argv)
    assert refused.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"PET_NO_PYTHON": "1"}, "PET_NO_PYTHON"),
        ({"PET_VIRTUAL_LOCAL_RANK": "1"}, "PET_VIRTUAL_LOCAL_RANK"),
        ({"PET_MAX_RESTARTS": "many"}, "--max-restarts many"),
        ({"PITCREW_HEAL_WAIT": "long"}, "PITCREW_HEAL_WAIT=long"),
        ({"PITCREW_AGENT_WAIT": "nan"}, "PITCREW_AGENT_WAIT=nan"),
        ({"PET_NNODES": "3", "SLURM_NODEID": "3"}, "SLURM_NODEID"),
    ],
)
def test_what_cannot_work_in_the_environment_is_refused_by_name(environ, says, capsys):
    with pytest.raises(SystemExit) as refused:
        parse("t.py", **environ)
    assert refused.value.code == 2 and says in capsys.readouterr().err


def test_variables_without_effect_are_reported():
    _, notes = parse("t.py", PET_TEE="3", PET_LOG_DIR="/logs", PET_SOMETHING="1", PET_ROLE="")
    assert len(notes) == 3 and [n.split()[0] for n in notes] == ["PET_LOG_DIR", "PET_TEE", "PET_SOMETHING"]


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("0,1", 2), ("2", 1), ("0,9,1", 1), ("-1", 0), ("GPU-aa,GPU-bb", 2), ("MIG-1", 1)],
)
def test_gpus_are_counted_as_a_worker_sees_them(tmp_path, visible, count):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "null"):
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert options._gpus(environ, str(tmp_path)) == count


def test_every_flag_of_torchrun_is_known():
    theirs = pytest.importorskip("torch.distributed.run").get_args_parser()
    ours = {name for action in options.parser({})._actions for name in action.option_strings}
    known = {name for action in theirs._actions for name in action.option_strings}
    assert known - ours - {"--print-completion", "--print_completion"} == set()


def test_flags_without_effect_are_accepted_and_told():
    _, notes = parse("--monitor-interval=5", "--log_dir", "x", "-r", "3", "--tee=3", "--rdzv-conf", "a=b", "t.py")
    assert len(notes) == 5 and any("monitor-interval" in note for note in notes)
