// The most likely token of each selected row and what its log-probability needs.
//
// math: token = argmax x, the lower id on a tie; sum = sum_i e^(x_i - max x)
// shapes: logits [selected, V], results [selected]
// layout: F32 rows
// precision: exponentials and their 16 lanes in F32; the host takes the logarithm in F64
// preconditions: V at least 1
// cost: two passes over V logits that are in cache
// tolerance: bit-identical to the reference
// wins: greedy decoding: 16 bytes a row travel to the host instead of V logits
// loses: one half-warp adds the exponentials of a row, in order
// fallback: `tare_ops::reference::sample` on the host, over logits that are downloaded: rows that are filtered, penalised,
//   masked, hot, that report their most likely tokens, or whose logits are no numbers
// evidence: in whole requests on an H200: 20261129T234538Z-7f4112c6219a6842, 20261129T234532Z-7d2ceaf39e4f6114
// source: none

// The best of one part of a row: parts are runs of ids.
KERNEL(sample_parts, SampleArgs, SAMPLE_THREADS) {
    __shared__ Best parts[SAMPLE_THREADS / 32];
    if (blockIdx.y >= a.step->selected) return;
    Best best = best_of_run(own_run(a), parts);
    if (threadIdx.x == 0) put_result(a.parts + (u64)blockIdx.y * a.count + blockIdx.x, best, 0.0f);
}

#define FINISH_THREADS 1024
#define FINISH_STAGED 4096
#define FINISH_EACH (FINISH_STAGED / FINISH_THREADS)

// The best of the parts of a row, then the sum of exponentials: all threads make them, the first half-warp adds them.
KERNEL(sample_finish, SampleArgs, FINISH_THREADS) {
    __shared__ Best best;
    __shared__ float staged[FINISH_STAGED];
    u32 t = blockIdx.x;
    if (t >= a.step->selected) return;
    if (threadIdx.x == 0) {
        Best b = none();
        for (u32 i = 0; i < a.count; i++) b = better(b, best_of(a.parts[(u64)t * a.count + i]));
        if (b.token == NOWHERE) b.odd = 1;
        best = b;
    }
    __syncthreads();
    const float* x = a.logits + (u64)t * a.stride;
    float most = best.logit, acc = 0.0f;
    for (u32 begin = 0; begin < a.vocab; begin += FINISH_STAGED) {
        u32 n = a.vocab - begin < FINISH_STAGED ? a.vocab - begin : FINISH_STAGED;
        float made[FINISH_EACH];
        UNROLL
        for (int i = 0; i < FINISH_EACH; i++) {
            u32 at = i * FINISH_THREADS + threadIdx.x;
            made[i] = at < n ? exponential(__fsub_rn(x[begin + at], most)) : 0.0f;
        }
        __syncthreads();
        UNROLL
        for (int i = 0; i < FINISH_EACH; i++) staged[i * FINISH_THREADS + threadIdx.x] = made[i];
        __syncthreads();
        if (threadIdx.x < LANES)
            for (u32 i = threadIdx.x; i < n; i += LANES) acc = __fadd_rn(acc, staged[i]);
    }
    if (threadIdx.x < 32) {
        float sum = tree(acc);
        if (threadIdx.x == 0) put_result(a.results + t, best, sum);
    }
}
