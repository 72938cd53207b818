"""What the tables and findings say, on traces small enough to know the answer."""

import pytest

import tclab.trace as trace
from tclab.trace._host_work import STEP_MARK


def said(report, words):
    """Return the one finding that begins with these words, or has them."""
    (found,) = [finding for finding in report.findings if words in finding]
    return found


def test_a_closure_is_not_charged_with_the_step_inside_it(write_trace, complete):
    events = [
        complete("ProfilerStep#7", 0, 100, "user_annotation"),
        complete("Optimizer.step#Adam.step", 5, 90, "user_annotation"),
        complete("## forward ##", 10, 30, "user_annotation"),
        complete("aten::mm", 12, 20),
        complete("## backward ##", 45, 40, "user_annotation"),
    ]
    report = trace.analyze(write_trace(events))
    share = report.categories.set_index("category")["self_us"]
    expected = {"optimizer": 20, "model_forward": 10, "tensor_ops": 20, "backward": 40, "other": 10}
    assert share[share > 0].to_dict() == expected
    stage = report.stages.set_index("stage")["self_us"]
    assert (stage["optimizer"], stage["model_forward"], stage["backward"]) == (20, 30, 40)


def test_what_is_printed_begins_with_the_stages_and_names_the_largest_operations(write_trace, complete):
    events = [
        complete("ProfilerStep#7", 0, 200, "user_annotation"),
        complete("Optimizer.step#Adam.step", 5, 90, "user_annotation"),
        complete("aten::copy_", 10, 80),
        complete("aten::mm", 100, 10),
    ]
    path = write_trace(events)
    report = trace.analyze(path)
    lines = str(report).splitlines()
    assert lines[2].split() == ["stage", "optimizer", "90", "µs", "45.0%"]
    assert any(line.split() == ["kind", "of", "work", "tensor_ops", "90", "µs", "45.0%"] for line in lines)
    shown = " ".join(str(report).split())
    assert shown.startswith("Self time of the main threads in trace.json; the whole recording takes 200 µs by")
    assert "The largest operations, by self time on all host threads: aten::copy_ 80 µs (1 call), " in shown
    assert f"“other” is time within events that no rule names, most in {STEP_MARK}: often Python" in shown
    compared = trace.compare(path, path)
    assert "whole recording 200 µs 200 µs 1 ×" in " ".join(str(compared).split())
    assert compared.findings == ["b's mean step is 0 s longer (1 ×): no stage differs."]
    assert str(path) in str(compared).replace("\n  ", "")
    assert [line.startswith("stage ") for line in str(compared).splitlines()].count(True) == 2
    alone = trace.analyze(write_trace([complete("aten::mm", 0, 10)]))
    assert "stage " not in str(alone)
    assert (len(alone.steps), alone.breakdown["rank"].isna().all()) == (0, True)
    assert any("how long a step takes" in finding for finding in alone.findings)
    assert "to say whether a device was idle (trace.json): it has no device events." in " ".join(str(alone).split())


@pytest.mark.parametrize(
    ("name", "kind", "category"),
    [
        ("aten::nll_loss", "cpu_op", "loss_computation"),
        ("aten::convolution_backward", "cpu_op", "backward"),
        ("autograd::engine::evaluate_function: MseLossBackward0", "cpu_op", "backward"),
        ("GeneratedBackwardFor_tclab_spmm_default", "cpu_op", "tensor_ops"),
        ("GeneratedBackwardFor_tclab_spmm_defaultBackward", "cpu_op", "backward"),
        ("Optimizer.zero_grad#SGD.zero_grad", "user_annotation", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", "data_loading"),
        ("nccl:all_reduce", "user_annotation", "ddp_communication"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", "ddp_communication"),
        ("cudaLaunchKernel", "cuda_runtime", "cuda_kernels"),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "cuda_kernels"),
        ("torch/nn/modules/linear.py(124): forward", "python_function", "model_forward"),
        ("torch_geometric/utils/subgraph.py(40): k_hop", "python_function", "graph_processing"),
        ("edge mask", "user_annotation", "graph_processing"),
        # the names of docs/your_loop.md
        ("data", "user_annotation", "data_loading"),
        ("mask", "user_annotation", "graph_processing"),
        ("forward", "user_annotation", "model_forward"),
        ("loss", "user_annotation", "loss_computation"),
        ("backward", "user_annotation", "backward"),
        ("optimizer", "user_annotation", "optimizer"),
        ("all_reduce", "user_annotation", "ddp_communication"),
    ],
)
def test_rules(write_trace, complete, name, kind, category):
    from tclab.trace._categories import RULES, first_rules
    from tclab.trace._read_trace import read_trace

    found = read_trace(write_trace([complete(name, 0, 1, kind)]))
    assert RULES[first_rules(found)[0]].category == category


def test_a_forward_pass_without_a_mark_is_said_until_it_has_one(write_trace, complete):
    said = 'The forward pass has no mark here and is within “outside any stage”; with record_function("forward"):'
    backward = complete("autograd::engine::evaluate_function: MulBackward0", 50, 30)
    plain = write_trace([complete("aten::mul", 0, 40), backward], "plain.json")
    marked = write_trace([complete("forward", 0, 40, "user_annotation"), backward], "marked.json")
    forward_alone = write_trace([complete("aten::mul", 0, 40)], "forward.json")
    for shown, times in (
        (trace.analyze(plain), 1), (trace.analyze(marked), 0), (trace.analyze(forward_alone), 0),
        (trace.compare(marked, plain), 1), (trace.compare(plain, plain), 1), (trace.compare(marked, marked), 0),
    ):  # fmt: skip
        assert " ".join(str(shown).split()).count(said) == times


def test_the_marks_of_all_steps_are_one_row_of_operations(write_trace, complete):
    events = [complete(f"ProfilerStep#{i}", 100 * i, 90, "user_annotation") for i in (8, 9, 10)]
    ops = trace.analyze(write_trace([*events, complete("aten::mm", 910, 20)])).ops
    assert ops[["name", "calls", "self_us"]].to_numpy().tolist() == [[STEP_MARK, 3, 250], ["aten::mm", 1, 20]]


@pytest.mark.parametrize("device", [False, True])
def test_a_table_without_rows_says_what_the_trace_lacks(write_trace, complete, device):
    kernel = complete("gemm", 30, 5, "kernel", pid=0, tid=7)
    report = trace.analyze(write_trace([complete("aten::mm", 0, 10), *[kernel] * device]))
    tables = {"syncs": report.syncs.head(10), "collectives": report.collectives.head(10)}
    if not device:
        breakdown = report.breakdown.dropna(subset="span_us").T
        tables |= {"idle causes": report.idle_causes, "gaps": report.gaps, "breakdown": breakdown}
        tables["kernels"] = report.kernels
    why = "" if device else ", which has no device events"
    for name, table in tables.items():
        assert table.empty
        assert table.attrs["empty"] == f"No {name} in this trace{why}."


def test_a_lab_adds_its_own_rule(write_trace, complete):
    path = write_trace([complete("my_sampler", 0, 10, "user_annotation"), complete("aten::mm", 2, 3)])
    report = trace.analyze(path, rules={"sampling": "^my_sampler$"})
    assert report.categories.set_index("category")["self_us"]["sampling"] == 7
    assert report.stages.set_index("stage")["self_us"]["sampling"] == 10


def test_time_without_any_event_is_other_and_shown(write_trace, complete):
    report = trace.analyze(write_trace([complete("aten::mm", 0, 10), complete("aten::mm", 90, 10)]))
    row = report.categories.set_index("category").loc["other"]
    assert (row["self_us"], row["unrecorded_us"], row["events"]) == (80, 80, 0)
    assert "and 80 µs without any event" in " ".join(str(report).split())


def launch(complete, start, duration, begins, lasts, number, name="gemm"):
    return [
        complete("cudaLaunchKernel", start, duration, "cuda_runtime", correlation=number),
        complete(name, begins, lasts, "kernel", pid=0, tid=7, correlation=number),
    ]


def test_idle_is_split_by_when_the_next_work_was_launched(write_trace, complete):
    events = [
        *launch(complete, 0, 2, 5, 10, 1),  # runs 5..15
        *launch(complete, 25, 2, 30, 10, 2),  # gap 15..30: 10 late, 5 from launch to start
        *launch(complete, 28, 2, 50, 10, 3),  # gap 40..50 with the work already launched
        complete("enumerate(DataLoader)#next", 14, 8, "user_annotation"),
    ]
    report = trace.analyze(write_trace(events))
    assert report.breakdown["idle_us"].item() == 25
    assert said(report, "Of the idle time").startswith(
        "Of the idle time 40% passed before the host launched the next work, 20% between launch and start, "
        "and 40% with work already launched"
    )
    causes = report.idle_causes.set_index("host_category")["idle_us"]
    assert causes["data_loading"] == 7
    assert report.idle_causes["idle_us"].sum() == 25
    assert said(report, "waited for data during 28.0% of its idle time")
    assert report.gaps["gap_us"].tolist() == [15, 10]


def test_steps_take_what_the_device_did_meanwhile(write_trace, complete):
    events = [
        complete("ProfilerStep#1", 0, 100, "user_annotation"),
        complete("ProfilerStep#2", 100, 50, "user_annotation"),
        complete("gemm", 90, 20, "kernel", pid=0, tid=7),
        complete("ncclKernel_AllReduce", 105, 10, "kernel", pid=0, tid=8),
    ]
    steps = trace.analyze(write_trace(events)).steps[["wall_us", "compute_us", "communication_us", "idle_us"]]
    assert steps.values.tolist() == [[100, 10, 0, 90], [50, 10, 10, 35]]


def test_steps_that_only_the_device_marks(write_trace, complete):
    events = [
        complete("ProfilerStep#4", 10, 20, "gpu_user_annotation", pid=0, tid=7),
        complete("ProfilerStep#4", 25, 15, "gpu_user_annotation", pid=0, tid=8),
        complete("gemm", 12, 10, "kernel", pid=0, tid=7),
        complete("aten::mm", 0, 15),
    ]
    report = trace.analyze(write_trace(events))
    row = report.steps.iloc[0]
    assert (row["marked_on"], row["start_us"], row["wall_us"], row["compute_us"]) == ("device", 10, 30, 10)


def test_the_main_thread_is_the_one_that_steps(write_trace, complete):
    other = [complete("aten::mm", i, 1, tid=2) for i in range(9)]
    main = [complete("ProfilerStep#1", 0, 30, "user_annotation", tid=3), complete("aten::add", 1, 1, tid=3)]
    report = trace.analyze(write_trace(other + main))
    assert report.categories["self_us"].sum() == 30
    assert set(report.threads[report.threads["is_main"]]["thread"]) == {"1 3"}


def test_a_collective_costs_its_minimum_and_the_rest_is_waiting(write_trace, complete):
    for rank, times in enumerate([(10, 30), (25, 12), (18, 40)]):
        events = [
            complete("ncclDevKernel_AllReduce(args)", 100 * i, t, "kernel", pid=rank, tid=40)
            for i, t in enumerate(times)
        ]
        path = write_trace(events, f"run/rank{rank}.json", distributedInfo={"rank": rank, "world_size": 3})
    table = trace.analyze(path.parent).collectives.set_index(["rank", "index"])
    assert table["own_us"].groupby("index").first().tolist() == [10, 12]
    assert table["wait_us"].to_dict() == {(0, 0): 0, (0, 1): 18, (1, 0): 15, (1, 1): 0, (2, 0): 8, (2, 1): 28}
    assert "51.1% was waiting" in said(trace.analyze(path.parent), "rank 1 waited least")


def test_ranks_that_made_different_calls_are_null(write_trace, complete):
    for rank in (0, 1):
        events = [complete("ncclKernel_X", 100 * i, 5, "kernel", pid=0, tid=1) for i in range(1 + rank)]
        path = write_trace(events, f"run/rank{rank}.json")
    table = trace.analyze(path.parent).collectives.set_index(["rank", "index"])["own_us"]
    assert table[(0, 0)] == 5
    assert table.isna().to_dict()[(1, 1)]


def test_syncs_name_the_place(write_trace, complete):
    events = [
        complete("train.py(12): step", 0, 100, "python_function"),
        complete("torch/_tensor.py(9): item", 5, 80, "python_function"),
        complete("aten::item", 10, 70),
        complete("cudaStreamSynchronize", 20, 50, "cuda_runtime"),
        complete("gemm", 30, 30, "kernel", pid=0, tid=7),
    ]
    report = trace.analyze(write_trace(events))
    row = report.syncs.iloc[0]
    assert (row["op"], row["site"], row["wait_us"]) == ("aten::item", "train.py(12): step", 50)
    assert said(report, "cudaStreamSynchronize in aten::item at train.py(12): step")


def test_copies_by_direction_with_unknown_sizes_null(write_trace, complete):
    events = [
        complete("Memcpy HtoD (Pinned -> Device)", 0, 10, "gpu_memcpy", pid=0, bytes=40_000),
        complete("Memcpy HtoD (Pinned -> Device)", 20, 10, "Memcpy", pid=0, bytes=60_000),
        complete("Memcpy DtoH (Device -> Pageable)", 40, 5, "gpu_memcpy", pid=0),
    ]
    report = trace.analyze(write_trace(events))
    copies = report.kernels.set_index(report.kernels["kernel"].str.slice(7, 11))
    assert copies.loc["HtoD", ["count", "bytes", "gb_per_s"]].tolist() == [2, 100_000, 5]
    assert copies["bytes"].isna()["DtoH"]
    assert copies["size"].isna()["DtoH"]
    memory = "(Memcpy HtoD (Pinned -> Device), each 16 kB to 1 MB, trace.json)"
    assert said(report, "2 copies") == f"2 copies moved 100 kB in 20 µs at 5.00 GB/s {memory}."
    assert said(report, "1 copy moved").startswith("1 copy moved data (size not recorded) in 5 µs (Memcpy DtoH")


def test_compare_by_category_step_and_op(write_trace, complete):
    def run(scale, steps, name):
        events = []
        for step in range(steps):
            at = 1000 * step
            events += [
                complete(f"ProfilerStep#{step}", at, 100 * scale, "user_annotation"),
                complete("aten::mm", at + 10, 50 * scale),
            ]
        return write_trace(events, name)

    a, b = run(1, 2, "a.json"), run(2, 4, "b.json")
    answer = trace.compare(a, trace.analyze(b))
    row = answer.categories.set_index("category").loc["tensor_ops"]
    assert (row["a_us"], row["b_us"], row["ratio"]) == (50, 100, 2)  # of a step
    whole = [[100, 200, 2, 100], [1100, 3200, pytest.approx(32 / 11), 2100]]
    assert answer.whole.drop(columns="whole").values.tolist() == whole
    assert ["whole", "mean", "step", "100", "µs", "200", "µs", "2", "×"] in [
        line.split() for line in str(answer).splitlines()
    ]
    assert answer.categories.set_index("category")["ratio"].isna()["optimizer"]
    op = answer.ops.set_index("name").loc["aten::mm"]
    assert (op["a_calls"], op["b_calls"], op["difference_us"]) == (1, 1, 50)  # of a step
    assert any("a has 2 steps per rank and b 4" in w for w in answer.warnings)
    assert trace.compare(a, a).warnings == []
    assert "Beware" in str(answer)


def test_compare_says_first_which_stages_and_operations_differ_most(write_trace, complete):
    def run(name, calls, steps):
        events = []
        for step in range(steps):
            at = (600 + 20 * calls) * step
            events += [complete("aten::mul", at + 10 + 20 * i, 10) for i in range(calls)]
            events += [complete(f"ProfilerStep#{step}", at, 600 + 20 * calls, "user_annotation")] * (steps > 1)
            events.append(complete("Optimizer.step", at + 20 + 20 * calls, 500 - 3 * calls, "user_annotation"))
        return write_trace(events, name)

    stepping = trace.compare(run("a.json", 5, 2), run("b.json", 105, 4))
    assert stepping.findings[1:] == [
        f"The operations that differ most, in a mean step on all host threads: {STEP_MARK} +1.3 ms; "
        "aten::mul +1 ms, 5 → 105 calls; Optimizer.step −300 µs."
    ]
    lead = "b's mean step is 2 ms longer (3.86 ×): +2.3 ms outside any stage, −300 µs in optimizer."
    assert stepping.findings[0] == lead
    shown = " ".join(str(stepping).split())
    assert shown.index(lead) < shown.index("The operations that differ") < shown.index("whole mean step")
    whole = trace.compare(run("b.json", 105, 1), run("a.json", 5, 1)).findings
    assert whole[0].startswith("b's whole recording is 1.7 ms shorter (0.259 ×): −2 ms outside any stage, +300 µs in")
    assert "in a whole recording on all host threads: aten::mul −1 ms, 105 → 5 calls" in whole[1]


def test_compare_warns_of_other_settings(write_trace, complete):
    a = write_trace([complete("aten::mm", 0, 5)], "a.json", distributedInfo={"rank": 0, "world_size": 2})
    b = write_trace([complete("f.py(1): f", 0, 5, "python_function")], "b.json")
    compared = trace.compare(a, b)
    assert compared.whole["a_us"].isna().tolist() == [True, False]  # no step is marked
    warnings = " ".join(compared.warnings)
    assert "world size" in warnings
    assert "with_stack differs" in warnings
