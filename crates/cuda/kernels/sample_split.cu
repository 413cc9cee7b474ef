// The most likely token of each selected row and what its log-probability needs, in an order of sums of its own.
//
// math: as sample.cu; every part of a row sums under its own maximum, and the parts are brought under that of the row
// shapes: logits [selected, V], parts [selected, count], results [selected]
// layout: F32 rows
// precision: the token exact; exponentials and sums in F32
// preconditions: V at least 1; count at most the threads of a block
// cost: one pass over V logits that are in cache
// tolerance: the token and its logit bit-identical to the reference, the sum as `tare_ops::conformance` says, order free
// wins: all threads add exponentials, and logits are read twice by the block that has just read them
// loses: nothing known
// fallback: sample.cu
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: none

// The sum of what the threads of the block hold, in thread 0.
DEVICE float sum_of_block(float v, float* parts) {
    v = sum_of_half(v);
    v += __shfl_xor_sync(FULL, v, 16, 32);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 i = 1; i < blockDim.x / 32; i++) v += parts[i];
    return v;
}

// The exponential of the difference from a largest logit; 0 under a largest one that is no number to differ from.
DEVICE float share_of(float logit, float most) {
    return most == -as_float(0x7f800000u) ? 0.0f : exponential(__fsub_rn(logit, most));
}

// The best of one part of a row and the sum under it: parts are runs of ids.
KERNEL(sample_split_parts, SampleArgs, SAMPLE_THREADS) {
    __shared__ Best parts[SAMPLE_THREADS / 32];
    __shared__ float sums[SAMPLE_THREADS / 32];
    __shared__ float most;
    let_next_start();
    await_previous();
    if (blockIdx.y >= a.step->selected) return;
    Run run = own_run(a);
    Best best = best_of_run(run, parts);
    if (threadIdx.x == 0) most = best.logit;
    __syncthreads();
    float sum = 0.0f;
    for (u32 i = run.begin + threadIdx.x; i < run.end; i += SAMPLE_THREADS) sum = __fadd_rn(sum, share_of(run.x[i], most));
    sum = sum_of_block(sum, sums);
    if (threadIdx.x == 0) put_result(a.parts + (u64)blockIdx.y * a.count + blockIdx.x, best, sum);
}

// The best of the parts of a row and their sums.
KERNEL(sample_split_finish, SampleArgs, SAMPLE_THREADS) {
    __shared__ Best parts[SAMPLE_THREADS / 32];
    __shared__ float sums[SAMPLE_THREADS / 32];
    __shared__ float most;
    let_next_start();
    await_previous();
    u32 t = blockIdx.x;
    if (t >= a.step->selected) return;
    Best best = none();
    Result own = {};
    bool there = threadIdx.x < a.count;
    if (there) {
        own = a.parts[(u64)t * a.count + threadIdx.x];
        best = best_of(own);
    }
    best = best_of_block(best, parts);
    if (threadIdx.x == 0) most = best.logit;
    __syncthreads();
    float sum = sum_of_block(there ? __fmul_rn(own.sum, share_of(own.logit, most)) : 0.0f, sums);
    if (best.token == NOWHERE) best.odd = 1;
    if (threadIdx.x == 0) put_result(a.results + t, best, sum);
}
