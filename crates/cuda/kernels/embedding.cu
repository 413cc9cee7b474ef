// Rows of the embedding.
//
// math: out[t] = table[token(t)], dequantized
// shapes: table [V, D], out [T, D]
// layout: the table as in matrix.cuh, which a tied head reads too
// precision: the codecs' roundings
// preconditions: tokens below V
// cost: one packed row a token
// tolerance: bit-identical to the reference
// wins: the packed head serves as table: nothing is kept twice
// loses: nothing known
// fallback: none: it takes every shape
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: none

struct EmbeddingArgs {
    Matrix m;
    const Step* step;
    float* out;
    u32 out_stride;
    u32 reserved;
};

#define EMBEDDING_THREADS 128

KERNEL(embedding, EmbeddingArgs, EMBEDDING_THREADS) {
    u32 t = blockIdx.x;
    if (t >= a.step->rows) return;
    u32 lane = threadIdx.x % LANES;
    for (u32 c = threadIdx.x / LANES; c < a.m.chunks; c += EMBEDDING_THREADS / LANES) {
        float w[8];
        unpack(load(a.m, a.step->row[t].token, c, lane), w);
        UNROLL
        for (int j = 0; j < 8; j++) {
            u32 k = c * CHUNK + j * LANES + lane;
            if (k < a.m.cols) a.out[(u64)t * a.out_stride + k] = w[j];
        }
    }
}
