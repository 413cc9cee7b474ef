// The gated unit of the feed-forward block.
//
// math: out = gate / (1 + e^-gate) * up
// shapes: gate, up, out [T, F]
// layout: F32 rows
// precision: the reference's exponential; division rounded once
// preconditions: out may be gate
// cost: two reads and one write of rows that are in cache
// tolerance: bit-identical to the reference; fast: exponential and division to about 22 bits
// wins: nothing but its shortness
// loses: a kernel of its own, where the two products before it could do it
// fallback: none: it takes every shape
// evidence: in whole requests on an H200: 20261129T234538Z-7f4112c6219a6842, 20261129T234532Z-7d2ceaf39e4f6114
// source: none

struct SwigluArgs {
    const Step* step;
    const float* gate;
    const float* up;
    float* out;
    u32 gate_stride;
    u32 up_stride;
    u32 out_stride;
    u32 width;
};

#define SWIGLU_THREADS 256

template <bool FAST>
DEVICE void gated(const SwigluArgs& a) {
    await_previous();
    u32 t = blockIdx.y, i = blockIdx.x * SWIGLU_THREADS + threadIdx.x;
    if (t >= a.step->rows || i >= a.width) return;
    float gate = a.gate[(u64)t * a.gate_stride + i];
    a.out[(u64)t * a.out_stride + i] = __fmul_rn(FAST ? silu_fast(gate) : silu_of(gate), a.up[(u64)t * a.up_stride + i]);
}

KERNEL(swiglu, SwigluArgs, SWIGLU_THREADS) { gated<false>(a); }

KERNEL(swiglu_fast, SwigluArgs, SWIGLU_THREADS) { gated<true>(a); }
