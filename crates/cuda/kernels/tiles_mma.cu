// Matrix products on tensor cores for many rows: out[t, n] = dot(x[t], w[n]) (+ bias[n]), added to out when accumulating.
//
// math: sums of 16 products by mma.sync, added to F32 sums in order of the columns as they lie in memory
// shapes: x [T, depth], up to three weights [n, depth], bias [n], out [T, n]
// layout: x and w BF16, columns in the order of matrix.cuh, which a sum over all of them does not mind; out F32 rows
// precision: BF16 products are exact, sums are F32 as tensor cores round them
// preconditions: depth a multiple of 128; what pads it is zero in x and w; out is no x
// cost: w once for 128 rows, x once for 128 outputs, both mostly from L2
// tolerance: order of its own
// wins: any device with BF16 tensor cores; no transposed or second copy of the weights
// loses: on Hopper, where a warpgroup's products are twice as fast
// fallback: linear.cu for up to 16 rows
// evidence: none yet
// source: none

#define MMA_THREADS 256
#define MMA_TILE 128
#define MMA_STAGES 3
#define MMA_STAGE_BYTES (2 * MMA_TILE * TILE_ROW)
// Rows of a tile of which all threads together copy a piece each.
#define ROWS_AT_ONCE (MMA_THREADS / 8)

// Begins to copy 128 rows of a matrix, 64 columns from `column` on.
DEVICE void copy_tile(const u16* matrix, u32 first, u32 rows, u32 depth, u32 column, u8* tile) {
    u32 r = threadIdx.x / 8, c = threadIdx.x % 8;
    UNROLL
    for (u32 i = 0; i < MMA_TILE; i += ROWS_AT_ONCE) {
        bool there = first + r + i < rows;
        const u16* from = matrix + (u64)(there ? first + r + i : 0) * depth + column + c * 8;
        copy_piece(tile + piece_at(r + i, c), from, there);
    }
}

// Eight warps, 2 by 4, each 64 rows by 32 outputs.
KERNEL(tiles_mma, TilesArgs, MMA_THREADS, 2) {
    SHARED_BYTES(shared);
    await_previous();
    u32 rows = rows_of(a.step, a.of_selected), first_row = blockIdx.x * MMA_TILE;
    if (first_row >= rows) return;
    const TilesPart& p = part_of(a, blockIdx.y);
    u32 first_out = (blockIdx.y - p.first_tile) * MMA_TILE, steps = a.depth / TILE_DEPTH;
    // The stage that is copied to next, and the one that is multiplied.
    u32 next = 0, now = 0;
    auto after = [](u32 stage) { return stage + 1 == MMA_STAGES ? 0 : stage + 1; };
    auto copy = [&](u32 step) {
        u8* stage = shared + next * MMA_STAGE_BYTES;
        next = after(next);
        if (step < steps) {
            copy_tile(a.x, first_row, rows, a.depth, step * TILE_DEPTH, stage);
            copy_tile(p.w, first_out, p.rows, a.depth, step * TILE_DEPTH, stage + MMA_TILE * TILE_ROW);
        }
        end_group();
    };
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 warp_row = warp / 4 * 64, warp_out = warp % 4 * 32;
    float d[4][4][4];
    UNROLL
    for (int i = 0; i < 64; i++) d[i / 16][i / 4 % 4][i % 4] = 0.0f;
    UNROLL
    for (u32 s = 0; s < MMA_STAGES - 1; s++) copy(s);
    for (u32 step = 0; step < steps; step++) {
        wait_groups<MMA_STAGES - 2>();
        __syncthreads();
        // All threads have read the stage that is written now.
        copy(step + MMA_STAGES - 1);
        const u8* xs = shared + now * MMA_STAGE_BYTES;
        now = after(now);
        const u8* ws = xs + MMA_TILE * TILE_ROW;
        UNROLL
        for (u32 k = 0; k < TILE_DEPTH / 16; k++) {
            u32 x[4][4], w[2][4];
            UNROLL
            for (int i = 0; i < 4; i++)
                load_matrices(x[i], xs + piece_at(warp_row + i * 16 + lane % 16, 2 * k + lane / 16));
            UNROLL
            for (int j = 0; j < 2; j++)
                load_matrices(w[j], ws + piece_at(warp_out + j * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            UNROLL
            for (int i = 0; i < 16; i++) multiply(d[i / 4][i % 4], x[i / 4], w[i % 4 / 2] + i % 2 * 2);
        }
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        u32 t = first_row + warp_row + i * 8 + lane / 4;
        if (t >= rows) continue;
        UNROLL
        for (int j = 0; j < 4; j++) {
            const float* pair = d[i / 2][j] + i % 2 * 2;
            put_pair(a, p, t, first_out + warp_out + j * 8 + lane % 4 * 2, pair[0], pair[1]);
        }
    }
}
