// RMS norm of rows, a block for each, in an order of sums of its own.
//
// math: x * w / sqrt(mean(x^2) + eps)
// shapes: x, out [T, D]; weight [D]
// layout: F32 rows
// precision: sums of squares in F32
// preconditions: heads is 1; out may be x
// cost: two reads and one write of rows that are in cache
// tolerance: `tare_ops::conformance`, order free
// wins: all threads add
// loses: a kernel of its own, where the product after it could do it
// fallback: norm.cu
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: none

KERNEL(rms_norm_block, NormArgs, NORM_THREADS) {
    __shared__ float parts[NORM_THREADS / 32];
    let_next_start();
    await_previous();
    u32 t = blockIdx.x;
    if (t >= rows_of(a.step, a.of_selected)) return;
    const float* x = a.x + (u64)t * a.x_stride;
    float dot = 0.0f;
    for (u32 i = threadIdx.x; i < a.width; i += NORM_THREADS) dot = __fmaf_rn(x[i], x[i], dot);
    dot = sum_of_half(dot);
    dot += __shfl_xor_sync(FULL, dot, 16, 32);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = dot;
    __syncthreads();
    dot = parts[0];
    for (u32 w = 1; w < NORM_THREADS / 32; w++) dot += parts[w];
    float inv = inverse_rms(dot, a.width, a.eps);
    for (u32 i = threadIdx.x; i < a.width; i += NORM_THREADS)
        a.out[(u64)t * a.out_stride + i] = __fmul_rn(__fmul_rn(x[i], inv), a.weight[i]);
}
