// Rows to BF16, as products in tiles read them.
//
// math: none
// shapes: x [T, width], out [T, depth]
// layout: x F32 rows; out BF16, columns in the order of matrix.cuh, zeros after the last
// precision: to nearest, ties to even
// preconditions: depth is width padded to chunks of 128
// cost: one read of the rows and one write of half as many bytes
// tolerance: bit-identical to rounding in the product
// wins: rows are rounded once for all tiles that read them
// loses: a pass of its own after norms and attention, which could write BF16 themselves
// fallback: none: it takes every shape
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: none

struct NarrowArgs {
    const Step* step;
    const float* x;
    u16* out;
    u32 x_stride;
    u32 width;
    u32 depth;
    u32 of_selected;
};

#define NARROW_THREADS 256

// A thread has the eight columns of a lane in one chunk.
KERNEL(narrow, NarrowArgs, NARROW_THREADS) {
    await_previous();
    u32 t = blockIdx.y, i = blockIdx.x * NARROW_THREADS + threadIdx.x;
    if (t >= rows_of(a.step, a.of_selected) || i >= a.depth / 8) return;
    const float* x = a.x + (u64)t * a.x_stride;
    u32 first = i / LANES * 128 + i % LANES;
    float v[8];
    UNROLL
    for (u32 j = 0; j < 8; j++) v[j] = first + LANES * j < a.width ? x[first + LANES * j] : 0.0f;
    ((uint4*)(a.out + (u64)t * a.depth))[i] = pack_eight(v);
}
