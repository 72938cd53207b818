"""A trace of a GPU, whole: backward on autograd's own thread, device time by kernel and cause, times, collectives."""

import itertools
import json

import pytest

import tclab.trace as trace

ENGINE = "autograd::engine::evaluate_function: MmBackward0"
OUTSIDE = "outside any stage"
SUBGRAPH = "torch_geometric/utils/subgraph.py(40): k_hop"


@pytest.fixture
def step(complete):
    """Return the events of a step of 1,000 µs: 300 µs of operators, 600 of backward on a thread, 100 of Adam."""

    def made(begin=0, main=1, engine=9, names=(ENGINE, ENGINE), number=1):
        marks = [complete(f"ProfilerStep#{begin}", begin, 1000, "user_annotation", tid=main)]
        ops = [complete("aten::mm", begin + 100 * i, 100, tid=main) for i in range(3)]
        backward = [complete(name, begin + 300 + 300 * i, 300, tid=engine) for i, name in enumerate(names)]
        backward.append(complete("aten::mm", begin + 320, 260, tid=engine))
        launch = complete("cudaLaunchKernel", begin + 330, 10, "cuda_runtime", tid=engine, correlation=number)
        kernel = complete("gemm_bwd", begin + 350, 200, "kernel", pid=0, tid=7, correlation=number)
        update = complete("Optimizer.step#Adam.step", begin + 900, 100, "user_annotation", tid=main)
        return [*marks, *ops, *backward, launch, kernel, update]

    return made


def stages(report):
    table = report.stages.set_index("stage")["self_us"]
    return table[table > 0].to_dict()


RIGHT = {"backward": 600, "optimizer": 100, OUTSIDE: 300}


def test_backward_on_autograds_thread_is_a_stage_and_the_same_run_on_one_thread_is_equal(write_trace, complete, step):
    two = trace.analyze(write_trace(step(), "two.json"))
    assert stages(two) == RIGHT
    one = trace.analyze(write_trace(step(engine=1), "one.json"))
    assert stages(one) == RIGHT
    for table in ("categories", "ops"):
        a, b = (getattr(side, table).set_index(getattr(side, table).columns[0])["self_us"] for side in (two, one))
        assert a.to_dict() == b.to_dict()
    assert trace.compare(two, one).findings[0] == "b's mean step is 0 s longer (1 ×): no stage differs."
    assert set(two.threads["thread"]) == {"1 1", "1 9"}  # each event on its own
    old = trace.analyze(write_trace(step(names=("MmBackward", "torch::autograd::AccumulateGrad")), "old.json"))
    assert stages(old) == RIGHT
    marked = [*step(), complete("## backward ##", 300, 600, "user_annotation")]
    assert stages(trace.analyze(write_trace(marked, "marked.json"))) == RIGHT


def test_two_threads_of_autograd_count_once_in_a_stage_and_each_in_its_operators(write_trace, complete, step):
    """A process with two devices has a thread of autograd for each; they run at once."""
    events = [*step(), complete(ENGINE, 400, 400, tid=10), complete("aten::add", 450, 100, tid=10)]
    report = trace.analyze(write_trace(events))
    assert stages(report) == RIGHT
    ops = report.ops.set_index("name")["self_us"]
    assert (ops["aten::add"], ops["aten::mm"]) == (100, 300 + 250)
    assert ops[ENGINE] == 600 - 260 + 300
    assert ops["cudaLaunchKernel"] == 10


def link(number, track, at, end):
    return {"ph": end, "cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": 1, "tid": track, "ts": at}


def test_a_backward_pass_counts_only_where_the_main_thread_waits_for_it(write_trace, complete, step):
    """Of several threads that train, links or the mark around the call say which one called it."""
    busy = [*step(), *(complete("aten::add", 310 + 50 * i, 40) for i in range(10))]
    assert "backward" not in stages(trace.analyze(write_trace(busy, "busy.json")))
    other = [complete("aten::mul", 100 * i, 90, tid=2) for i in range(3)]
    links = [link(1, 2, 10, "s"), link(1, 9, 310, "f")]
    assert "backward" not in stages(trace.analyze(write_trace([*step(), *other, *links], "linked.json")))
    mine = [*other, link(1, 1, 10, "s"), link(1, 9, 310, "f")]
    assert stages(trace.analyze(write_trace([*step(), *mine], "mine.json"))) == RIGHT
    mark = complete("backward", 300, 600, "user_annotation", tid=2)
    assert "backward" not in stages(trace.analyze(write_trace([*step(), *other, mark], "marked.json")))
    trainer = [complete("aten::mul", 300, 250, tid=9)]  # a thread that does other things, too, is not autograd's
    assert "backward" not in stages(trace.analyze(write_trace([*step()[:4], *trainer, *step()[5:]], "own.json")))


@pytest.mark.parametrize(
    ("mark", "inside", "category", "stage"),
    [
        ("## backward ##", "nn.Module: Linear_0", "python_function", "backward"),  # a forward pass computed again
        ("forward", "aten::nll_loss", "cpu_op", "model_forward"),
        ("forward", SUBGRAPH, "python_function", "model_forward"),
        (ENGINE, "torch/nn/modules/linear.py(124): forward", "python_function", "backward"),
        ("forward", "c10d::allgather_", "cpu_op", "ddp_communication"),  # surely one of its own
        ("forward", "loss", "user_annotation", "loss_computation"),
        ("Optimizer.step#LBFGS.step", ENGINE, "cpu_op", "backward"),  # around a closure
        ("enumerate(DataLoader)#_BaseDataLoaderIter.__next__", SUBGRAPH, "python_function", "graph_processing"),
    ],
)
def test_a_stages_name_within_anothers_mark_does_not_take_its_time(
    write_trace, complete, mark, inside, category, stage
):
    of_mark = "cpu_op" if mark == ENGINE else "user_annotation"
    events = [complete(mark, 0, 100, of_mark), complete(inside, 10, 80, category)]
    assert stages(trace.analyze(write_trace(events)))[stage] in (80, 100)


def test_a_rule_of_ones_own_is_a_stage_within_a_mark_too(write_trace, complete):
    events = [complete("forward", 0, 100, "user_annotation"), complete("my_mask.py(3): f", 10, 80, "python_function")]
    report = trace.analyze(write_trace(events), rules={"graph_processing": "my_mask"})
    assert stages(report) == {"graph_processing": 80, "model_forward": 20}


def test_device_time_by_kernel_operator_shapes_module_and_stage(write_trace, complete):
    def launched(at, kernel, took, number, op="aten::addmm", dims=None, **more):
        dims = {"Input Dims": dims} if dims else {}
        return [
            complete(op, at, 40) | {"args": dims},
            complete("cudaLaunchKernel", at + 5, 5, "cuda_runtime", correlation=number),
            complete(kernel, at + 20, took, "kernel", pid=0, tid=7, correlation=number, **more),
        ]

    events = [
        complete("forward", 0, 400, "user_annotation"),
        complete("nn.Module: Net_0", 5, 390, "python_function"),
        complete("nn.Module: Linear_0", 10, 200, "python_function"),
        complete("aten::linear", 20, 180),
        *launched(30, "gemm", 50, 1, dims=[[64, 8], [8]]),
        *launched(90, "gemm", 70, 2, dims=[[64, 8], [8]]),
        *launched(220, "gemm", 20, 3, dims=[[2, 8], [8]]),
        *launched(500, "ncclDevKernel_AllReduce", 60, 4, op="c10d::allreduce_"),
        complete("orphan", 600, 100, "kernel", pid=0, tid=7),
    ]
    report = trace.analyze(path := write_trace(events))
    table = report.kernels.drop(columns=["rank", "device", "size", "bytes", "gb_per_s"])
    rows = [[None if cell != cell else cell for cell in row] for row in table.to_numpy().tolist()]
    assert rows == [
        ["gemm", "compute", "aten::addmm", "[[64, 8], [8]]", "nn.Module: Linear_0", "model_forward", 2, 120, 60, 0.4],
        ["orphan", "compute", None, None, None, None, 1, 100, 100, pytest.approx(1 / 3)],
        ["ncclDevKernel_AllReduce", "communication", "c10d::allreduce_", None, None, "ddp_communication", 1, 60, 60,
         0.2],
        ["gemm", "compute", "aten::addmm", "[[2, 8], [8]]", "nn.Module: Net_0", "model_forward", 1, 20, 20,
         pytest.approx(1 / 15)],
    ]  # fmt: skip
    worked = "300 µs, 46.2% of its span: compute 80%, communication 20%; by stage model_forward 47%"
    did = next(i for i, finding in enumerate(report.findings) if f"The device worked for {worked}" in finding)
    assert did < next(i for i, finding in enumerate(report.findings) if "The device was idle" in finding)
    assert "gemm 47% (3 ×, 140 µs)" in report.findings[did + 1]
    assert "Launched by aten::addmm 47%, c10d::allreduce_ 20%" in report.findings[did + 1]
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert trace.analyze(path).kernels.equals(report.kernels)


TIMES = {
    "since 1970, with nanoseconds": lambda i: f"16152072645050{i:02}.001",
    "with an exponent": lambda i: f"1.6152072645050{i:02}001e+15",
    "since 1970, a millisecond before the second": lambda i: f"16152072645999{i:02}.999",
    "since the quarter": lambda i: f"78912345678{i:02}.007",
}


@pytest.mark.parametrize("text", TIMES.values(), ids=TIMES)
def test_times_are_read_as_whole_nanoseconds_from_their_decimals(tmp_path, text):
    """Kernels of 0.997 µs, one each µs: a double of µs since 1970 holds quarters of a µs."""
    kernel = '{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{},"dur":0.997}}'
    path = tmp_path / "trace.json"
    path.write_text("[" + ",".join(kernel.format(text(i)) for i in range(50)) + "]")
    report = trace.analyze(path)
    row = report.breakdown.iloc[0]
    assert (row["span_us"], row["busy_us"], row["idle_us"]) == (49.997, 49.85, 0.147)
    assert set(report.gaps["gap_us"]) == {0.003}
    assert any("0.3% of its 50 µs (147 ns in 49 gaps" in finding for finding in report.findings)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*, vllm::RankSignals)", "all_reduce"),
        ("void flashinfer::trtllm::allreduce_fusion_kernel_oneshot_lamport<bf16, 8>(Params)", "all_reduce"),
        ("quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecFP>, __half>", "all_reduce"),
        ("tensorrt_llm::kernels::oneShotAllReduceKernel<float, 8>(AllReduceParams)", "all_reduce"),
        ("(anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(int)", "all_reduce"),
        ("aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)", "reduce_scatter"),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)", "all_gather"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("mscclKernel_Sum_half_Simple(ncclDevComm*)", "other"),
        ("void deep_ep::internode_ll::dispatch<3, 10, 7168>(void*, float*)", "all_to_all"),
        ("void layer_norm_kernel<float, WarpAllReduce<float, 32> >(float*)", None),
        ("void softmax_block_all_reduce<float>(float*)", None),
        ("small_gather_kernel(float*)", None),
        ("parallelReduceKernel(float*)", None),
    ],
)
def test_a_collective_is_known_by_what_it_does(write_trace, complete, name, kind):
    report = trace.analyze(write_trace([complete(name, 0, 10, "kernel", pid=0, tid=7)]))
    assert report.breakdown["communication_us"].item() == (0 if kind is None else 10)
    assert report.collectives["kind"].tolist() == ([] if kind is None else [kind])


def ranks(write_trace, complete, calls, folder="run", **head):
    """Write a trace of each rank: of each call its start, duration, name and arguments; return the table by rank."""
    for rank, mine in enumerate(calls):
        events = [complete(name, at, took, "kernel", pid=rank, tid=40, **args) for at, took, name, args in mine]
        events += [complete("ProfilerStep#1", 0, 5000, "user_annotation")] * (head.get("step", rank) != rank)
        path = write_trace(events, f"{folder}/rank{rank}.json")
    return trace.analyze(path.parent)


def reduce(at, took, size=8, **args):
    known = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": size}
    return at, took, "ncclDevKernel_Generic", {**known, **args}


def test_a_pair_of_ranks_is_one_collective_by_its_number_and_else_by_order_where_this_is_sure(write_trace, complete):
    def waits(*calls, **more):
        report = ranks(write_trace, complete, calls, folder=f"run{next(count)}", **more)
        table = report.collectives.sort_values(["rank", "start_us"])
        return [None if wait != wait else wait for wait in table["wait_us"]], set(table["paired"]), report

    count = itertools.count()
    # rank 1 lost its first call: by number the others pair, by order all would be a call late
    late = [reduce(1000 * i, 10, Seq=i) for i in range(4)], [reduce(1000 * i + 2, 8, Seq=i) for i in range(1, 4)]
    assert waits(*late)[0] == [None, 2, 2, 2, 0, 0, 0]
    unnumbered = [[(at, took, name, {**args, "Seq": None}) for at, took, name, args in calls] for calls in late]
    found, paired, report = waits(*unnumbered)
    assert (set(found), paired) == ({None}, {None})
    assert "share fewer than three collectives" in report.findings[0]
    sizes = [reduce(1000 * i, 10, 8 + i) for i in range(4)], [reduce(1000 * i, 8, 9 - i) for i in range(4)]
    assert waits(*sizes)[1] == {None}
    equal = [reduce(1000 * i, 10) for i in range(4)], [reduce(1000 * i + 2, 8) for i in range(4)]
    assert waits(*equal)[0] == [2, 2, 2, 2, 0, 0, 0, 0]
    apart = [reduce(1000 * i, 10) for i in range(4)], [reduce(1000 * i + 500, 8) for i in range(4)]
    assert waits(*apart, step=0)[1] == {None}  # they recorded other steps
    members = {"[0, 1]": [10, 11], "[2, 3]": [12, 13]}
    groups = [[reduce(0, us, **{"Process Group Ranks": of})] for of, times in members.items() for us in times]
    assert waits(*groups)[0] == [0, 1, 0, 1]


def test_ranks_need_not_leave_a_broadcast_together(write_trace, complete):
    for kind, named in (("Broadcast", []), ("AllReduce", ["unaligned clocks"])):
        calls = [[(1000 * i, 10 + 300 * rank, f"ncclDevKernel_{kind}", {}) for i in range(4)] for rank in range(2)]
        assert ranks(write_trace, complete, calls, kind).trust["pathology"].tolist() == named


def test_a_step_is_compared_by_whole_steps_alone(write_trace, complete):
    def run(name, tail, extra):
        events = []
        for i in range(4):
            events += [complete(f"ProfilerStep#{i}", 1000 * i, 1000, "user_annotation")]
            events += [complete("forward", 1000 * i, 900, "user_annotation")]
            events += [complete("aten::mm", 1000 * i + 100 * j, 90) for j in range(9)]
        events.append(complete("ProfilerStep#4", 4000, tail, "user_annotation"))
        events.append(complete("optimizer", 4000 + tail, extra, "user_annotation"))
        return write_trace(events, name)

    compared = trace.compare(run("a.json", 50, 10), run("b.json", 200, 9000))
    assert compared.whole["a_us"][0] == compared.whole["b_us"][0] == 1000
    assert compared.findings[0] == "b's mean step is 0 s longer (1 ×): no stage differs."
    assert compared.stages.set_index("stage")["a_us"]["model_forward"] == 900
    assert compared.ops.set_index("name")["b_calls"]["aten::mm"] == 9
    steps = trace.analyze(run("c.json", 50, 10)).steps
    assert steps["whole"].tolist() == [True, True, True, True, False]
    assert json.loads(steps["idle_us"].isna().to_json()) == {str(i): True for i in range(5)}


def test_a_file_merged_of_two_ranks_is_compared_by_the_steps_of_one(write_trace, complete):
    def run(pids, name):
        events = []
        for pid in pids:
            for i in range(3):
                events += [complete(f"ProfilerStep#{i}", 1000 * i, 1000, "user_annotation", pid=pid, tid=pid)]
                events += [complete("forward", 1000 * i, 900, "user_annotation", pid=pid, tid=pid)]
                events += [complete("aten::mm", 1000 * i + 100 * j, 90, pid=pid, tid=pid) for j in range(9)]
        return trace.analyze(write_trace(events, name))

    alone, merged = run([5], "alone.json"), run([5, 6], "merged.json")
    assert merged.steps["wall_us"].tolist() == alone.steps["wall_us"].tolist() == [1000, 1000, 1000]
    compared = trace.compare(alone, merged)
    stages, ops = compared.stages.set_index("stage"), compared.ops.set_index("name")
    assert stages.loc["model_forward", ["a_us", "b_us"]].tolist() == [900, 900]  # of the main thread
    assert ops.loc["aten::mm", ["a_calls", "b_calls"]].tolist() == [9, 18]  # on all host threads
    said = "; 3 more on other threads, as in a file merged of several ranks, are not counted (merged.json)."
    assert [said in " ".join(report.findings) for report in (alone, merged)] == [False, True]


def test_a_launch_that_waits_for_room_in_the_queue_is_a_wait_and_an_allocation_is_none(write_trace, complete):
    none = ["cudaMalloc", "cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2", "cudaFreeAsync", "cudaMemcpyToSymbolAsync"]
    events = [complete(name, 0, 500, "cuda_runtime") for name in none]
    for i in range(1100):
        took = 900 if i in (3, 1050) else 5
        events.append(complete("cudaLaunchKernel", 1000 + 10 * i, took, "cuda_runtime", correlation=i + 1))
        events.append(complete("gemm", 50_000 + 100 * i, 90, "kernel", pid=0, tid=7, correlation=i + 1))
    waits = ["cudaMemcpy", "cudaMemcpy2D", "cuMemcpyDtoH_v2", "cudaMemcpyFromSymbol", "cuMemFree_v2", "piEventsWait"]
    events += [complete(name, 200_000 + 100 * i, 90, "cuda_runtime") for i, name in enumerate(waits)]
    table = trace.analyze(write_trace(events)).syncs
    right = [["cudaLaunchKernel (full queue)", 1, 900], *([name, 1, 90] for name in waits)]
    assert table[["call", "calls", "wait_us"]].to_numpy().tolist() == right


def test_a_number_of_no_call_or_of_several_says_nothing_of_a_launch(write_trace, complete):
    def run(numbers, pids=(1, 1)):
        events = []
        for i, (number, pid) in enumerate(zip(numbers, pids, strict=True)):
            events.append(complete(f"aten::op{i}", 100 * i, 50, pid=pid))
            events.append(complete("cudaLaunchKernel", 100 * i + 5, 5, "cuda_runtime", pid=pid, correlation=number))
            events.append(complete(f"k{i}", 100 * i + 20, 40, "kernel", pid=0, tid=7, correlation=number))
        report = trace.analyze(write_trace(events))
        ops = report.kernels.set_index("kernel")["op"].astype(object)
        assert len(report.trust) == 0
        unknown = any("For 100% of it no launch is known" in finding for finding in report.findings)
        return ops.where(ops.notna(), None).to_dict(), unknown

    assert run([1, 2]) == ({"k0": "aten::op0", "k1": "aten::op1"}, False)
    assert run([0, 0]) == ({"k0": None, "k1": None}, True)
    assert run([1, 1]) == ({"k0": "aten::op0", "k1": "aten::op1"}, False)  # two windows in a file
    assert run([1, 1], pids=(1, 2)) == ({"k0": None, "k1": None}, True)  # two ranks in a file
