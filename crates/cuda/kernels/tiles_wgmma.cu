// Matrix products on Hopper's tensor cores for many rows, as tiles_mma.cu, or the gated unit of two of them.
//
// math: sums of 16 products by wgmma, added to F32 sums in order of the columns as they lie in memory; gated:
//   silu(x w1) * (x w2)
// shapes: x [T, depth], up to three weights [n, depth], bias [n], out [T, n]; gated [T, gated_depth]
// layout: x, w and gated BF16, columns in the order of matrix.cuh, which a sum over all of them does not mind; out F32 rows
// precision: as tiles_mma.cu; silu to about 22 bits, gated rounded to BF16 once
// preconditions: depth a multiple of 128; what pads it is zero in x and w; out is no x
// cost: w once for the rows of a tile, x once for its outputs, both mostly from L2
// tolerance: order of its own
// wins: one warp of a block does nothing but copies, so that two warpgroups multiply without a pause
// loses: few rows, where a block walks a long depth by itself; the last wave of blocks is seldom full
// fallback: tiles_mma.cu on other devices
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: the division of labour of CUTLASS's warp-specialized kernels

#define WGMMA_THREADS 384
#define PRODUCTS 2

// The barriers behind the stages.
template <int STAGES>
struct Barriers {
    u64 full[STAGES];   // ends when a stage's bytes have come
    u64 empty[STAGES];  // ends when both warpgroups have read it
};

// Copies the tiles of x and of one matrix, or of halves of two, stage after stage.
template <int M, int N, int STAGES, bool GATED>
DEVICE void bring(const TilesArgs& a, const TilesPart& p, u32 first_row, u32 first_out, u8* shared, Barriers<STAGES>& b) {
    const u32 x_bytes = 128 * M * TILE_ROW, stage_bytes = x_bytes + N * TILE_ROW;
    for (u32 step = 0; step < a.depth / TILE_DEPTH; step++) {
        u32 s = step % STAGES;
        u8* stage = shared + s * stage_bytes;
        wait_phase(&b.empty[s], step / STAGES % 2 ^ 1);
        arrive_with(&b.full[s], stage_bytes);
        copy_mapped(stage, &a.map, &b.full[s], step * TILE_DEPTH, first_row);
        copy_mapped(stage + x_bytes, &p.map, &b.full[s], step * TILE_DEPTH, first_out);
        if (GATED)
            copy_mapped(stage + x_bytes + N / 2 * TILE_ROW, &a.part[1].map, &b.full[s], step * TILE_DEPTH, first_out);
    }
}

// The warpgroup's M times 64 rows of each stage by all its outputs.
template <int M, int N, int STAGES>
DEVICE void multiply_stages(const TilesArgs& a, u32 group, const u8* shared, Barriers<STAGES>& b, float (*d)[N / 2]) {
    const u32 x_bytes = 128 * M * TILE_ROW, stage_bytes = x_bytes + N * TILE_ROW;
    for (u32 step = 0; step < a.depth / TILE_DEPTH; step++) {
        const u8* stage = shared + step % STAGES * stage_bytes;
        wait_phase(&b.full[step % STAGES], step / STAGES % 2);
        begin_products();
        UNROLL
        for (u32 k = 0; k < TILE_DEPTH / 16; k++) {
            UNROLL
            for (int i = 0; i < M; i++)
                multiply_tiles<N>(d[i], stage + (group * M + i) * 64 * TILE_ROW, stage + x_bytes, k);
        }
        end_products();
        // The products of the stage before are done, and these go on.
        wait_products<1>();
        if (step > 0 && threadIdx.x % 128 == 0) arrive(&b.empty[(step - 1) % STAGES]);
    }
    wait_products<0>();
}

// N / 2 gated outputs of a row, of which this thread has two of each eight: those that lie side by side in memory.
template <int N>
DEVICE void put_gated(const TilesArgs& a, u32 t, u32 first_out, const float* gate, const float* up) {
    u32 lane = threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < 4; i++) {
        u32 column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float v[N / 32];
        UNROLL
        for (int j = 0; j < N / 32; j++) {
            u32 n = first_out + 16 * j + column;
            const int at = 4 * (2 * j + i / 2) + i % 2;
            v[j] = __fmul_rn(silu_fast(biased(a.part[0], n, gate[at])), biased(a.part[1], n, up[at]));
        }
        u16* out = a.gated + (u64)t * a.gated_depth + first_out / 128 * 128 + column * 8 + first_out % 128 / 16;
        UNROLL
        for (int j = 0; j < N / 32; j += 4) {
            uint2 four = {pack_bf16(v[j], v[j + 1]), pack_bf16(v[j + 2], v[j + 3])};
            *(uint2*)(out + j) = four;
        }
    }
}

// One warpgroup of copies, two of products, each M times 64 rows by N outputs.
template <int M, int N, int STAGES, bool GATED>
DEVICE void tiles_wgmma(const TilesArgs& a, u8* shared) {
    await_previous();
    const u32 tile_rows = PRODUCTS * M * 64;
    Barriers<STAGES>& b = *(Barriers<STAGES>*)(shared + STAGES * (tile_rows + N) * TILE_ROW);
    u32 rows = rows_of(a.step, a.of_selected), first_row = blockIdx.x * tile_rows;
    if (first_row >= rows) return;
    const TilesPart& p = GATED ? a.part[0] : part_of(a, blockIdx.y);
    u32 first_out = (blockIdx.y - p.first_tile) * (GATED ? N / 2 : N);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) begin_barrier(&b.full[s], 1), begin_barrier(&b.empty[s], PRODUCTS);
        show_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x == 0) bring<M, N, STAGES, GATED>(a, p, first_row, first_out, shared, b);
        return;
    }
    more_registers<232>();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128 - 1;
    float d[M][N / 2];
    UNROLL
    for (int i = 0; i < M * N / 2; i++) d[i / (N / 2)][i % (N / 2)] = 0.0f;
    multiply_stages<M, N, STAGES>(a, group, shared, b, d);
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int half = i % 2;
        u32 t = first_row + (group * M + i / 2) * 64 + warp * 16 + half * 8 + lane / 4;
        if (t >= rows) continue;
        const float* mine = d[i / 2] + 2 * half;
        if constexpr (GATED) {
            put_gated<N>(a, t, first_out, mine, mine + N / 4);
        } else {
            UNROLL
            for (int j = 0; j < N / 8; j++) put_pair(a, p, t, first_out + j * 8 + lane % 4 * 2, mine[4 * j], mine[4 * j + 1]);
        }
    }
}

#define TILES(name, m, n, stages, gated)           \
    KERNEL(name, TilesArgs, WGMMA_THREADS, 1) {    \
        SHARED_BYTES(shared);                      \
        tiles_wgmma<m, n, stages, gated>(a, shared); \
    }

TILES(tiles_256x160, 2, 160, 4, false)
TILES(tiles_256x128, 2, 128, 4, false)
TILES(tiles_128x256, 1, 256, 4, false)
TILES(tiles_128x128, 1, 128, 6, false)
TILES(tiles_128x64, 1, 64, 8, false)
TILES(gated_256x128, 2, 128, 4, true)
TILES(gated_128x256, 1, 256, 4, true)
TILES(gated_128x128, 1, 128, 6, true)
