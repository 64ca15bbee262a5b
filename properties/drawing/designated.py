"""Cases for statistics: random data without ties, enough of it, and logits of moderate size.

Statistics are of all elements of an output together, so that these cases are larger than others,
and fewer. Everything that a kernel treats differently occurs: lengths that tiles do not divide,
masks, a bias, explicit blocks.
"""

from properties.cases.case import DTYPES, Bias, Case, Segments
from properties.drawing import space
from properties.drawing.space import Choose, Space

Q_LENGTHS = (256, 257, 384)
KV_LENGTHS = (256, 300, 384)
HEADS = (2, 1)
HEAD_DIMS = (64, 80, 128)

TIMES_USUAL_SCALE = (1.0, 2.0)
"""Beyond, a few keys have all the weight, and an error of o or dq is that of a few roundings."""


def draw(choose: Choose, of: Space) -> Case:
    """One case within the features and dtypes of a space; the blocks cover both passes."""
    q_len, kv_len = choose(Q_LENGTHS), choose(KV_LENGTHS)
    heads, head_dim = choose(HEADS), choose(HEAD_DIMS)
    biased = of.bias and choose((False, True))
    segments = None
    if of.segments and choose((False, True)):
        # Both parts of the keys are long enough for their rows to average over many.
        q_cut, kv_cut = choose((q_len // 2, 128)), choose((kv_len // 2, 128))
        q_runs = ((0, q_cut), (1, q_len - q_cut))
        kv_runs = ((0, kv_cut), (1, kv_len - kv_cut))
        segments = Segments("int32", (q_runs,), (kv_runs,))
    blocks = None
    if of.block_sizes and choose((False, True)):
        blocks = space.draw_blocks(choose, q_len, kv_len, 1, backward=True)
    return Case(
        batch=1,
        heads=heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=choose(of.dtypes),
        causal=of.causal and choose((False, True)),
        sm_scale=choose(TIMES_USUAL_SCALE) * space.usual_scale(head_dim),
        bias=Bias(choose(DTYPES), "normal") if biased else None,
        segments=segments,
        block_sizes=blocks,
        seed=choose(space.SEEDS),
    )


def unsuited(case: Case) -> str:
    """Why statistics say nothing of a case, empty for all that `draw` draws."""
    usual = space.usual_scale(case.head_dim)
    needs = {
        f"values {case.values}": case.values == "normal" and case.tensors is None,
        f"bias {case.bias and case.bias.family}": case.bias is None or case.bias.family == "normal",
        f"lengths {case.q_len} and {case.kv_len}": min(case.q_len, case.kv_len) >= min(Q_LENGTHS),
        f"head_dim {case.head_dim}": case.head_dim >= min(HEAD_DIMS),
        f"sm_scale {case.sm_scale:g}": case.sm_scale in [t * usual for t in TIMES_USUAL_SCALE],
    }
    return next((f"{what} is no case for statistics" for what, met in needs.items() if not met), "")
