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
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: none

#define HEADS_THREADS 128
#define MOST_HEAD 256
#define HEADS_EACH (HEADS_THREADS / LANES)

// One half-warp for each head of q, k and v.
KERNEL(heads, HeadsArgs, HEADS_THREADS) {
    __shared__ float xs[HEADS_EACH][MOST_HEAD];
    u32 t = blockIdx.y;
    if (t >= a.step->rows) return;
    const Row row = a.step->row[t];
    u32 half = threadIdx.x / LANES, kv_heads = a.pool.kv_heads;
    u32 h = blockIdx.x * HEADS_EACH + half;
    u32 kind = h < a.heads ? HEAD_Q : h < a.heads + kv_heads ? HEAD_K : HEAD_V;
    u32 head = kind == HEAD_Q ? h : kind == HEAD_K ? h - a.heads : h - a.heads - kv_heads;
    bool there = h < a.heads + 2 * kv_heads;
    take_head<MOST_HEAD, 0>(a, t, kind, there ? head : 0, there ? a.pool.head_size : 0, 0, xs[half]);
    __syncthreads();
    if (there && kind != HEAD_V) turn_head(a, t, xs[half]);
    __syncthreads();
    if (!there) return;
    if (kind != HEAD_V) {
        float* own = (float*)head_of(a, t, kind, head);
        for (u32 i = threadIdx.x % LANES; i < a.pool.head_size; i += LANES) own[i] = xs[half][i];
    }
    if (kind != HEAD_Q) store_head(a, row, kind, head, xs[half]);
}
