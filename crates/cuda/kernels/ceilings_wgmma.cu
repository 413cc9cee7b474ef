// What Hopper's tensor cores can do at most: products of BF16 tiles that lie in shared memory already.
//
// math: d [64, 256] += a [64, 64] b [256, 64]^T, four times a round, for each of two warpgroups
// shapes: a of each warpgroup [64, 64], b [256, 64]
// layout: tiles of rows of 128 bytes, swizzled as the instruction wants them: which number is where does not matter
// precision: as the instruction; the sums mean nothing
// preconditions: 48 KiB of shared memory
// cost: two warpgroups by 16 products of 64 * 256 * 16 multiply-adds a round, no memory
// tolerance: none: results only keep the compiler from leaving the work out
// wins: nothing is brought and nothing is put away, so that tensor cores alone are busy
// loses: nothing: it computes nothing that anybody needs
// fallback: none
// evidence: its samples on an H200 are in every record there: 20261130T084719Z-e3d8890ac3a3a223
// source: none

#define PRODUCT_THREADS 256
#define TILE_A 8192
#define TILE_B 32768

KERNEL(ceiling_products, CeilingArgs, PRODUCT_THREADS, 1) {
    SHARED_BYTES(shared);
    // Numbers of either sign between a half and 1: tensor cores draw less power, and run faster, on zeros.
    for (u32 i = threadIdx.x; i < (2 * TILE_A + TILE_B) / 4; i += PRODUCT_THREADS) {
        u32 r = (i + 1) * 2654435761u;
        r ^= r >> 15;
        r *= 2246822519u;
        ((u32*)shared)[i] = (r & 0x807f807fu) | 0x3f003f00u;
    }
    show_to_products();
    __syncthreads();
    const u8 *mine = shared + threadIdx.x / 128 * TILE_A, *b = shared + 2 * TILE_A;
    float d[128];
    UNROLL
    for (int i = 0; i < 128; i++) d[i] = 0.0f;
    ROLLED
    for (u64 n = 0; n < a.count; n++) {
        begin_products();
        UNROLL
        for (u32 k = 0; k < 16; k++) multiply_tiles<256>(d, mine, b, k % 4);
        end_products();
        // The other warpgroup has tensor cores to itself meanwhile.
        wait_products<0>();
    }
    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < 128; i++) sum += d[i];
    if (sum == -1.0f) a.out[blockIdx.x] = as_bits(sum);
}
