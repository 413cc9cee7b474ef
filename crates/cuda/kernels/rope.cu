// Rotary position embedding, in place.
//
// math: (a, b) -> (fma(a, cos, -(b sin)), fma(b, cos, a sin)) for each pair of each head
// shapes: x [T, heads * E]; cosine and sine [T, E / 2]
// layout: pairs (i, i + E / 2) or (2 i, 2 i + 1)
// precision: angles in F64 on the host, rounded to F32 once
// preconditions: E even
// cost: one read and one write of the rows, which are in cache
// tolerance: bit-identical to the reference
// wins: the angles of a step are made once for all layers
// loses: they travel to the device with every step
// fallback: none: it takes every shape
// evidence: none yet
// source: none

struct RopeArgs {
    const Step* step;
    float* x;
    u32 stride;
    u32 heads;
    u32 pairs;
    u32 interleaved;
};

#define ROPE_THREADS 128

KERNEL(rope, RopeArgs, ROPE_THREADS) {
    u32 t = blockIdx.x;
    if (t >= a.step->rows) return;
    for (u32 n = threadIdx.x; n < a.heads * a.pairs; n += ROPE_THREADS) {
        u32 i = n % a.pairs;
        float* head = a.x + (u64)t * a.stride + (u64)(n / a.pairs) * 2 * a.pairs;
        float* first = head + (a.interleaved ? 2 * i : i);
        float* second = head + (a.interleaved ? 2 * i + 1 : i + a.pairs);
        float c = a.step->cosine[(u64)t * a.pairs + i], s = a.step->sine[(u64)t * a.pairs + i];
        float p = *first, q = *second;
        *first = __fmaf_rn(p, c, -__fmul_rn(q, s));
        *second = __fmaf_rn(q, c, __fmul_rn(p, s));
    }
}
