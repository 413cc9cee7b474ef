// The rows that something is wanted of.
//
// math: none
// shapes: x [T, D], out [selected, D]
// layout: F32 rows
// precision: exact
// preconditions: selected rows ascending
// cost: one read and one write of the rows
// tolerance: bit-identical to the reference
// wins: rows that nobody asks about skip the head
// loses: nothing known
// fallback: none: it takes every shape
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: none

struct SelectArgs {
    const Step* step;
    const float* x;
    float* out;
    u32 x_stride;
    u32 out_stride;
    u32 width;
    u32 reserved;
};

#define SELECT_THREADS 256

KERNEL(select_rows, SelectArgs, SELECT_THREADS) {
    u32 t = blockIdx.x;
    if (t >= a.step->selected) return;
    const float* x = a.x + (u64)a.step->selected_row[t] * a.x_stride;
    for (u32 i = threadIdx.x; i < a.width; i += SELECT_THREADS) a.out[(u64)t * a.out_stride + i] = x[i];
}
