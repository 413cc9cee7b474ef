// Root-mean-square normalisation of rows, and of each head by itself.
//
// math: out = (x * inv) * weight, inv = 1 / sqrt(dot(x, x) / D + eps)
// shapes: rms_norm x, out [T, D], weight [D]; head_norm x [T, heads * E] in place, weight [E]
// layout: F32 rows
// precision: F32, one rounding an operation; the dot product in 16 lanes
// preconditions: out is not x in rms_norm
// cost: one read and one write of the rows, which are in cache
// tolerance: bit-identical to the reference
// wins: the row is staged once, so that the chain of the sum waits for shared memory alone
// loses: one half-warp sums, the rest of the block waits
// fallback: none: it takes every shape
// evidence: in whole requests on an H200: 20261129T234538Z-7f4112c6219a6842, 20261129T234532Z-7d2ceaf39e4f6114
// source: none

#define NORM_STAGED 4096

KERNEL(rms_norm, NormArgs, NORM_THREADS) {
    __shared__ float xs[NORM_STAGED];
    __shared__ float inv;
    u32 t = blockIdx.x;
    if (t >= rows_of(a.step, a.of_selected)) return;
    const float* x = a.x + (u64)t * a.x_stride;
    float acc = 0.0f;
    for (u32 begin = 0; begin < a.width; begin += NORM_STAGED) {
        u32 n = a.width - begin < NORM_STAGED ? a.width - begin : NORM_STAGED;
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += NORM_THREADS) xs[i] = x[begin + i];
        __syncthreads();
        if (threadIdx.x < LANES)
            for (u32 i = threadIdx.x; i < n; i += LANES) acc = __fmaf_rn(xs[i], xs[i], acc);
    }
    if (threadIdx.x < 32) {
        float dot = tree(acc);
        if (threadIdx.x == 0) inv = inverse_rms(dot, a.width, a.eps);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < a.width; i += NORM_THREADS)
        a.out[(u64)t * a.out_stride + i] = __fmul_rn(__fmul_rn(x[i], inv), a.weight[i]);
}

#define HEAD_NORM_THREADS 128

KERNEL(head_norm, NormArgs, HEAD_NORM_THREADS) {
    u32 t = blockIdx.x;
    if (t >= a.step->rows) return;
    u32 lane = threadIdx.x % LANES, half = threadIdx.x / LANES;
    for (u32 first = 0; first < a.heads; first += HEAD_NORM_THREADS / LANES) {
        u32 h = first + half;
        u32 width = h < a.heads ? a.width : 0;
        float* x = a.out + (u64)t * a.out_stride + (u64)h * a.width;
        float acc = 0.0f;
        for (u32 i = lane; i < width; i += LANES) acc = __fmaf_rn(x[i], x[i], acc);
        float inv = __shfl_sync(FULL, inverse_rms(tree(acc), a.width, a.eps), 0, LANES);
        for (u32 i = lane; i < width; i += LANES) x[i] = __fmul_rn(__fmul_rn(x[i], inv), a.weight[i]);
    }
}
