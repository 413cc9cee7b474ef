// Rows of a packed matrix to BF16, for products in tiles.
//
// math: dequantization as the codecs do it
// shapes: rows [first, first + count) of a matrix; out [count, chunks, 16, 8]
// layout: columns in the order of matrix.cuh, as they were packed
// precision: one rounding to BF16, to nearest, ties to even, after those of dequantization
// preconditions: first + count at most the matrix's rows; fewer than 2^31 chunks at once
// cost: one read of the packed rows, one write of two bytes a weight
// tolerance: bit-identical to rounding what the codecs give
// wins: one product in tiles serves every format, and each weight is unpacked once for all rows
// loses: few rows, for which the two bytes written and read again are most of the time
// fallback: linear.cu for up to 16 rows
// evidence: in whole requests on an H200: 20261130T085036Z-90c85b40984942a0
// source: none

struct WidenArgs {
    Matrix m;
    u16* out;
    u32 first;
    u32 count;
};

#define WIDEN_THREADS 256
// Chunks of a half-warp, all under way at once.
#define WIDEN_EACH 4

KERNEL(widen, WidenArgs, WIDEN_THREADS) {
    u32 lane = threadIdx.x % LANES;
    u32 begin = (blockIdx.x * (WIDEN_THREADS / LANES) + threadIdx.x / LANES) * WIDEN_EACH;
    u32 all = a.count * a.m.chunks, row = a.first + begin / a.m.chunks, chunk = begin % a.m.chunks;
    Packed packed[WIDEN_EACH];
    UNROLL
    for (int i = 0; i < WIDEN_EACH; i++) {
        if (begin + i < all) packed[i] = load(a.m, row, chunk, lane);
        chunk++;
        if (chunk == a.m.chunks) chunk = 0, row++;
    }
    UNROLL
    for (int i = 0; i < WIDEN_EACH; i++) {
        if (begin + i >= all) continue;
        float w[8];
        unpack(packed[i], w);
        ((uint4*)a.out)[(u64)(begin + i) * LANES + lane] = pack_eight(w);
    }
}
