"""The benchmark's reader, and its run of schedules whose cycles are counted by hand."""

import pytest

from kernel.benchmark import execution, schedule
from kernel.benchmark.copies import Copies
from kernel.benchmark.execution import Execution, execute
from kernel.benchmark.generations import GENERATIONS
from kernel.benchmark.notation import Unreadable

V5E = GENERATIONS["v5e"]
DELAY = V5E.delay

# As the compiler writes them: a comment holds what ends a bundle elsewhere, one spans lines.
RECORDED = """
= control target key start
LH: loop header
PF: predicated region fallthrough
= control target key end

     0   :  { %s50_s0 = inlined_call_operand.hbm [shape: bf16[8], index: 0, kind: in] /* ;; } */ }
   0x1   :  { %12 = vsyncpa [#allocation4 + $0x1], 0  ;;  %s20_s15 = smov.u32 0 /* a copy
strides: (1, 1) */ } /* Start region 128 */
   0x2 LB: > { %9 = sst [smem:[#allocation1_spill]] %s74_s19  ;;  %s74_s19 = sphi %s20_s15, %s2_s3 }
   0x3   : > { %v9_v0 = vld [vmem:[%s72_s9] sm:$0xf]  ;;  %s27_s2 = smov.u32 (%p51_p0, %s49_s2), 0 }
   0x4 PF: > {}
"""


def numbered(*bundles: str) -> list[schedule.Bundle]:
    """Reads bundles that are written without their numbers."""
    lines = (f"{number:#6x}   :  {{ {bundle} }}" for number, bundle in enumerate(bundles))
    return schedule.read_bundles("\n".join(lines).replace("   0x0 ", "     0 "))


def cycles(*bundles: str) -> int:
    return execute(numbered(*bundles), V5E).cycles


def loop(*body: str, turns: int) -> list[str]:
    """A loop whose counter is %s2_s2."""
    return [
        "%s1_s1 = smov.u32 0",
        "%s2_s2 = sphi %s1_s1, %s3_s3",
        *body,
        "%s3_s3 = sadd.s32 1, %s2_s2",
        f"%p4_p4 = scmp.lt.s32.totalorder %s3_s3, {turns}",
        "%5 = sbr.rel (%p4_p4) target bundleno = 1 (0x1), region = 3",
        *[""] * DELAY,
    ]


def test_bundles_are_read_with_scalar_instructions_only():
    bundles = schedule.read_bundles(RECORDED)
    assert [[each.opcode for each in bundle] for bundle in bundles] == [
        ["inlined_call_operand.hbm"],
        ["smov.u32"],
        ["sst", "sphi"],
        ["smov.u32"],
        [],
    ]
    store, phi = bundles[2]
    assert store.operands == ("[smem:[#allocation1_spill]]", "%s74_s19")
    assert phi.registers() == ["s20_s15", "s2_s3"]
    (move,) = bundles[3]
    assert (move.predicate, move.otherwise, move.operands) == ("p51_p0", "s49_s2", ("0",))


def test_missing_bundles_are_noticed():
    with pytest.raises(Unreadable, match="bundle 3 of a schedule is numbered 0x4"):
        schedule.read_bundles(RECORDED.replace("   0x3   :", "   dropped"))
    with pytest.raises(Unreadable, match="no bundles"):
        schedule.read_bundles("")


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        ("MATMUL, MATPUSH, VSTORE, VSTORE:SPILL, SALU", ["1 0 2 1 0", "0 0 0 0 0", "0 0 1 1 1"]),
        ("MXU, VSTORE, VSTORE:SPILL, SALU", ["1 2 1 0", "0 0 0 0", "0 1 1 1"]),
    ],
)
def test_spills_are_those_of_either_layout(names, rows):
    text = "\n".join(["== CAPACTIY:", names, "2 2 2 2 2", "== UTILIZATION:", *rows, ""])
    assert schedule.read_spills(text, 3) == 2
    with pytest.raises(Unreadable, match="4 bundles"):
        schedule.read_spills(text, 4)


def test_memory_is_that_of_distinct_allocations_on_chip():
    text = """
      %1 = vst [#allocation3 [shape = 'u8[512]{0}', space=vmem, size = 0x200, scoped, tag = 'a']]
      %2 = vld [#allocation3 [shape = 'u8[512]{0}', space=vmem, size = 0x200, scoped, tag = 'a']]
      %3 = vld [#allocation4 [shape = 's32[1]{0}', space=smem, size = 0x4, scoped, tag = 'b']]
      %4 = vld [#allocation5 [shape = 'u8[16]{0}', space=vmem, size = 0x10, scoped, tag = 'c']]
    """
    assert schedule.read_vmem(text) == 512 + 16


def test_code_is_reloaded_where_a_loop_leaves_its_overlay():
    once = '"#0:prelude def:#1 size:320" -> "#1:tlp def:n/a size:17536 <exit>"'
    assert not schedule.reloads_code(once)
    assert schedule.reloads_code(
        once + '\n"#1:tlp size:17536" -> "#2:tlp size:9"\n"#2:t" -> "#1:t"'
    )


def test_a_loop_runs_its_turns():
    # One bundle before, and in each turn the phi, 3 of the body, 3 of the end and 4 after it.
    assert cycles(*loop("", "", "", turns=10), "") == 1 + 10 * (1 + 3 + 3 + DELAY) + 1


def test_a_predicated_region_runs_where_its_predicate_says():
    region = [
        "%p6_p6 = scmp.ge.s32.totalorder %s2_s2, 3",
        "%7 = sbr.rel (%p6_p6) target bundleno = 10 (0xa), region = 1",
        *[""] * DELAY,
        *["%v8_v0 = vadd.f32 %v8_v1, %v8_v2"] * 2,
    ]
    # The two bundles of the region in 3 of 10 turns.
    assert cycles(*loop(*region, turns=10)) == 1 + 10 * (1 + 6 + 3 + DELAY) + 3 * 2
    negated = [bundle.replace("(%p6_p6)", "(!%p6_p6)") for bundle in region]
    assert cycles(*loop(*negated, turns=10)) == 1 + 10 * (1 + 6 + 3 + DELAY) + 7 * 2


def test_later_generations_run_more_after_a_branch():
    long, short = (
        [*loop(turns=10)[:-DELAY], *[""] * delay] for delay in (GENERATIONS["tpu7x"].delay, DELAY)
    )
    assert execute(numbered(*short), V5E).cycles == 1 + 10 * 8
    assert execute(numbered(*long), GENERATIONS["tpu7x"]).cycles == 1 + 10 * 10


def test_phis_of_a_block_take_their_values_at_once():
    # Exchanges 0 and 9 on every turn, so that the loop ends on the second, where it is 9.
    exchange = [
        "%s1_s1 = smov.u32 0  ;;  %s2_s2 = smov.u32 9",
        "%s3_s3 = sphi %s1_s1, %s4_s4  ;;  %s4_s4 = sphi %s2_s2, %s3_s3",
        "%p5_p5 = scmp.ne.s32.totalorder %s3_s3, 9",
        "%6 = sbr.rel (%p5_p5) target bundleno = 1 (0x1), region = 1",
        *[""] * DELAY,
    ]
    assert cycles(*exchange) == 1 + 2 * (3 + DELAY)


# 5 where %p8_p8 holds, else 6.
CHOICE = ("%s7_s7 = smov.u32 6", "%s9_s9 = smov.u32 (%p8_p8, %s7_s7), 5")


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (["%s9_s9 = sadd.s32 4294967295, 8"], 7),
        (["%s9_s9 = ssub.s32 3, 5"], -2),
        (["%s9_s9 = sshrl.u32 4294967295, 28"], 15),
        (["%s9_s9 = sshra.s32 4294967288, 1"], -4),
        (["%s9_s9 = sshll.u32 3, 31"], -(2**31)),
        (["%s8_s8 = smulhi.u32 2863311531, 22", "%s9_s9 = sshrl.u32 %s8_s8, 1"], 22 // 3),
        (["%p8_p8 = scmp.lt.s32.totalorder 4294967295, 0", *CHOICE], 5),
        (["%p8_p8 = scmp.lt.u32.totalorder 4294967295, 0", *CHOICE], 6),
        (["%p7_p7 = pneg 1", "%p8_p8 = pnor %p7_p7, 0", *CHOICE], 5),
        (["%p7_p7 = pnand 1, 0", "%p8_p8 = pxor %p7_p7, 1", *CHOICE], 6),
        (["%s9_s9 = scalar_select 1, 8, 9"], 8),
        (["%8 = sst [smem:[#allocation7_spill]] 4", "%s9_s9 = sld [smem:[#allocation7_spill]]"], 4),
        (
            [
                "%s7_s7 = smov.u32 1",
                "%8 = sst [smem:[#allocation7 + $0x1]] 3",
                "%s9_s9 = sld [smem:[#allocation7 + %s7_s7]]",
            ],
            3,
        ),
    ],
)
def test_arithmetic(code, value):
    count = len(code) + 2 + DELAY
    branch = [
        f"%p1_p1 = scmp.eq.s32.totalorder %s9_s9, {value % 2**32}",
        f"%2 = sbr.rel (%p1_p1) target bundleno = {count + 1}, region = 1",
        *[""] * DELAY,
    ]
    # The last bundle is left out where the comparison holds.
    assert cycles(*code, *branch, "") == count


def test_copies_pass_one_after_the_other_and_are_waited_for():
    # Each has 491 * 32 bytes, which take 32 cycles.
    code = [
        "%s1_s1 = inlined_call_operand.hbm [shape: f32[9], index: 0, kind: input, shape index: {}]",
        "%s2_s2 = scalar_lea.sflag [#allocation4], 1",
        "%3 = dma.hbm_to_vmem [thread:$0]  %s1_s1, 491, %s9_s9, [#allocation4], 1, 1, 1",
        "%4 = dma.hbm_to_vmem [thread:$0]  %s1_s1, 491, %s9_s9, %s2_s2",
        "%5 = dma.done.wait [#allocation4], 491",
        "%6 = dma.done.wait %s2_s2, 491",
        "",
    ]
    first = 2 + 32 + V5E.read_latency
    assert execute(numbered(*code), V5E) == Execution(7, (first + 32) + 2)
    # A wait is none where its predicate does not hold.
    code[5:6] = ["%p7_p7 = pneg 1", "%6 = dma.done.wait (%p7_p7), %s2_s2, 491"]
    assert execute(numbered(*code), V5E) == Execution(8, first + 4)


def test_a_write_is_seen_sooner_and_a_flag_gives_what_it_has():
    copies = Copies(V5E)
    copies.start("vmem_to_hbm", 491, flag=1, now=100)
    copies.start("hbm_to_vmem", 491, flag=2, now=100)
    copies.start("hbm_to_vmem", 491, flag=2, now=100)
    assert copies.wait(1, 491, now=0) == 100 + 32 + V5E.write_latency
    assert copies.wait(2, 491, now=0) == 100 + 64 + V5E.read_latency
    assert copies.wait(2, 491, now=0) == 100 + 96 + V5E.read_latency
    assert copies.wait(2, 491, now=7) == 7


def test_it_is_core_0_that_runs():
    of_core = "%1_1 = sbr.rel (%p3_p3) target bundleno = 7 (0x7), region = 3"
    code = [
        "%s2_s2 = sld [smem:[#allocation0]]",
        "%p3_p3 = scmp.eq.s32.totalorder %s2_s2, 0",
        of_core,
        *[""] * (DELAY + 3),
    ]
    assert execute(numbered(*code), V5E, "allocation0").cycles == 3 + DELAY + 3
    code[2] = of_core.replace("= 7 (0x7)", "= 9 (0x9)")
    assert execute(numbered(*code), V5E, "allocation0").cycles == 3 + DELAY + 1
    text = """
      %1 = sld [#allocation7 [shape = 'u32[]', space=smem, size = 0x4, tag = 'a - null pointer']]
      %2 = sld [#allocation8 [shape = 'u32[]', space=smem, size = 0x4, tag = 'b - core index']]
    """
    assert schedule.read_core_array(text) == "allocation8"
    assert schedule.read_core_array("") is None


def test_only_what_decides_has_to_be_known():
    assert cycles("%s1_s1 = sfancy.s32 3", "%9 = shalt.err %s1_s1") == 2
    copy = "%9 = dma.hbm_to_vmem %s0_s0, %s1_s1, %s0_s0, [#allocation4]"
    with pytest.raises(Unreadable, match=r"sfancy\.s32 3"):
        cycles("%s1_s1 = sfancy.s32 3", copy)
    with pytest.raises(Unreadable, match="%s1_s1, which nothing sets"):
        cycles(copy)
    with pytest.raises(Unreadable, match="nothing in it has written"):
        cycles("%s1_s1 = sld [smem:[#allocation7]]", copy)


def test_schedules_that_cannot_be_run_are_refused(monkeypatch):
    branch = "%5 = sbr.rel target bundleno = {}, region = 3"
    with pytest.raises(Unreadable, match="branch at"):
        cycles("", branch.format(4), *[""] * 5)  # into its own delay
    with pytest.raises(Unreadable, match=r"branch scall"):
        cycles("%5 = scall %s1_s1")
    monkeypatch.setattr(execution, "_MOST_CYCLES", 1000)
    with pytest.raises(Unreadable, match="no end after 1005 cycles"):
        cycles(branch.format(0), *[""] * DELAY)
