// What the projections of a row go through before attention, in one launch: norm of each head, rotation, the cache.
//
// math: as norm.cu (head_norm), rope.cu and kv_append.cu, one after the other
// shapes: q [T, H * E] and k [T, K * E] in place, v [T, K * E]; cosine and sine [T, E / 2]; weights [E] or none
// layout: pools as in kv.cuh
// precision: as theirs
// preconditions: E even and at most 256; slots distinct and inside their tables
// cost: one read and one write of the rows, one write of the tokens
// tolerance: bit-identical to the reference
// wins: five launches become one
// loses: nothing known
// fallback: the three kernels, when the calls of a plan do not follow each other like this
// evidence: none yet
// source: none

struct HeadsArgs {
    const Step* step;
    float* q;
    float* k;
    const float* v;
    const float* q_norm;  // null: no norm
    const float* k_norm;
    Pool pool;
    u32 q_stride;
    u32 k_stride;
    u32 v_stride;
    u32 heads;
    u32 layer;
    u32 interleaved;
    float q_eps;
    float k_eps;
};

#define HEADS_THREADS 128
#define HEADS_EACH (HEADS_THREADS / LANES)
#define MOST_HEAD 256

DEVICE void store(const HeadsArgs& a, const Row& row, u64 at, float x) {
    if (a.pool.bf16) ((u16*)row.pool)[at] = to_bf16(x);
    else ((float*)row.pool)[at] = x;
}

// One half-warp for each head of q, k and v.
KERNEL(heads, HeadsArgs, HEADS_THREADS) {
    __shared__ float xs[HEADS_EACH][MOST_HEAD];
    u32 t = blockIdx.y;
    if (t >= a.step->rows) return;
    const Row row = a.step->row[t];
    u32 lane = threadIdx.x % LANES, half = threadIdx.x / LANES;
    u32 e = a.pool.head_size, pairs = e / 2, kv_heads = a.pool.kv_heads;
    u32 h = blockIdx.x * HEADS_EACH + half;
    bool is_q = h < a.heads, is_k = !is_q && h < a.heads + kv_heads;
    bool is_v = !is_q && !is_k && h < a.heads + 2 * kv_heads;
    u32 width = is_q || is_k || is_v ? e : 0;
    u32 head = is_q ? h : is_k ? h - a.heads : h - a.heads - kv_heads;
    float* own = is_q ? a.q + (u64)t * a.q_stride : a.k + (u64)t * a.k_stride;
    const float* from = is_v ? a.v + (u64)t * a.v_stride : own;
    const float* norm = is_q ? a.q_norm : is_k ? a.k_norm : 0;

    float acc = 0.0f;
    for (u32 i = lane; i < width; i += LANES) {
        float x = from[head * e + i];
        xs[half][i] = x;
        acc = __fmaf_rn(x, x, acc);
    }
    float inv = __shfl_sync(FULL, inverse_rms(tree(acc), e, is_q ? a.q_eps : a.k_eps), 0, LANES);
    if (norm)
        for (u32 i = lane; i < width; i += LANES) xs[half][i] = __fmul_rn(__fmul_rn(xs[half][i], inv), norm[i]);
    __syncthreads();
    if (width == 0) return;

    u32 place;
    u64 page = page_of(a.step, row, row.slot, &place);
    u64 at = place_of(a.pool, page, a.layer, is_v, head, row.page_tokens, place);
    if (is_v) {
        for (u32 i = lane; i < e; i += LANES) store(a, row, at + i, xs[half][i]);
        return;
    }
    for (u32 i = lane; i < pairs; i += LANES) {
        u32 first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + pairs;
        float c = a.step->cosine[(u64)t * pairs + i], s = a.step->sine[(u64)t * pairs + i];
        float p = xs[half][first], q = xs[half][second];
        float turned_p = __fmaf_rn(p, c, -__fmul_rn(q, s)), turned_q = __fmaf_rn(q, c, __fmul_rn(p, s));
        own[head * e + first] = turned_p;
        own[head * e + second] = turned_q;
        if (is_k) {
            store(a, row, at + first, turned_p);
            store(a, row, at + second, turned_q);
        }
    }
}
