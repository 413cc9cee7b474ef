// What the device can do at most: reads from its memory, F32 multiply-adds.
//
// math: read: the exclusive or of n words; multiply_add: chains x = x * a + b
// shapes: words [n]
// layout: 16 bytes a thread, neighbouring threads side by side
// precision: exact; the numbers of multiply_add mean nothing
// preconditions: n a multiple of 4 words; the words are more than the caches hold
// cost: the words once; operations as counted by the caller
// tolerance: none: results only keep the compiler from leaving the work out
// wins: as many independent loads or chains under way as the device takes
// loses: nothing: it computes nothing that anybody needs
// fallback: none
// evidence: its samples on an H200 are in every record there: 20261130T084719Z-e3d8890ac3a3a223
// source: none

#define CEILING_THREADS 512
#define CHAINS 16

KERNEL(ceiling_read, CeilingArgs, CEILING_THREADS) {
    u64 step = (u64)gridDim.x * CEILING_THREADS;
    u64 at = (u64)blockIdx.x * CEILING_THREADS + threadIdx.x;
    u32 sum = 0;
    for (; at + 7 * step < a.count; at += 8 * step) {
        uint4 v[8];
        UNROLL
        for (int i = 0; i < 8; i++) v[i] = a.words[at + i * step];
        UNROLL
        for (int i = 0; i < 8; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (; at < a.count; at += step) sum ^= a.words[at].x;
    // Never true of the zeros that are read, which the compiler cannot know.
    if (sum == 0x5ca1ab1eu) a.out[blockIdx.x] = sum;
}

KERNEL(ceiling_multiply_add, CeilingArgs, CEILING_THREADS) {
    float x[CHAINS];
    UNROLL
    for (int i = 0; i < CHAINS; i++) x[i] = (float)(threadIdx.x + i);
    float scale = 0.999f, shift = 1e-3f;
    for (u64 n = 0; n < a.count; n++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) x[i] = __fmaf_rn(x[i], scale, shift);
    }
    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    if (sum == -1.0f) a.out[blockIdx.x] = as_bits(sum);
}
