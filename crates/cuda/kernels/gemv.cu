// Matrix products for few rows on tensor cores, in an order of their own: out[t, n] = dot(x[t], w[n]) (+ bias[n]), added
// to out when accumulating.
//
// A launch may carry up to three matrices that read the same rows, the norm that makes those rows, and the gated unit
// that two of them feed.
//
// math: 16 outputs are the rows of a tensor-core product, rows of x its columns. The warps of a block share the columns of
//   such a tile, each a run of chunks, and their sums meet in shared memory; a block goes from tile to tile. Quants are
//   multiplied as the BF16 numbers 128 + nibble, which are exact, and each group is put right by its scale, its bias and
//   its sum of x
// shapes: x [T, k] with T at most ROWS, weight [n, k], bias [n], out [T, n]
// layout: weights as in matrix.cuh: a quad of threads reads neighbouring 16 bytes of a row; x is staged in the order in
//   which its threads meet the weights
// precision: x rounded to BF16; products of BF16 exact, sums in F32 in an order of their own
// preconditions: calls round x to BF16; groups of at least 32 columns; out is not x; at most GEMV_THREADS threads
// cost: the packed matrix once
// tolerance: `tare_ops::conformance`, order free
// wins: a weight costs a fraction of an instruction, whatever its packing, and up to 8 rows cost what one costs; loads run
//   on from tile to tile, and into the kernel before
// loses: a matrix of few rows has few tiles, so that few blocks read it
// fallback: linear.cu
// evidence: none yet
// source: none

#define GEMV_THREADS 256
#define MOST_WARPS (GEMV_THREADS / 32)
#define TILE_OUTPUTS 16

// What a thread holds of one chunk of its two rows; with the first of LENT chunks also a scale and a bias of each row,
// which it lends its quad.
struct Slice {
    uint4 q[2][LOADS];
#if PLAIN == 0
    u32 scale[2];
    u32 bias[2];
    u32 kinds;  // how the scales of the two rows are kept
#endif
};

// What a thread reads of one of its two rows: `g` and `g + 8` of the tile, or output `g` of two matrices.
struct Source {
    const uint4* q;
    const u8* scales;
    const u8* biases;
    u32 kind;
};

DEVICE Source source(const Matrix& m, u32 row) {
    u64 at = (u64)(row < m.rows ? row : m.rows - 1) * m.chunks;
    u32 size = m.scale_kind == 0 ? 4 : 2;
    Source s;
    s.q = (const uint4*)m.quants + at * LOADS * 4 + threadIdx.x % 4;
    s.scales = (const u8*)m.scales + at * GROUPS * size;
    s.biases = (const u8*)m.biases + at * GROUPS * size;
    s.kind = m.scale_kind;
    return s;
}

// A scale as it lies in memory: it is made a number when it is wanted, so that nothing waits for the load.
DEVICE u32 scale_bits(const u8* scales, u32 at, u32 kind) {
    return kind == 0 ? ((const u32*)scales)[at] : ((const u16*)scales)[at];
}

DEVICE float scale_of(u32 bits, u32 kind) {
    return kind == 0 ? as_float(bits) : kind == 1 ? from_f16(bits) : from_bf16(bits);
}

// The matrix that a tile belongs to.
DEVICE const Part* part_of(const LinearArgs& a, u32 tile) {
    const Part* part = a.part;
    if (a.parts > 1 && tile >= a.part[1].first_block) part = a.part + 1;
    if (a.parts > 2 && tile >= a.part[2].first_block) part = a.part + 2;
    return part;
}

// The two sources of a tile.
template <bool GATED>
DEVICE void sources_of(const LinearArgs& a, u32 tile, Source* s) {
    u32 g = threadIdx.x % 32 / 4;
    if (GATED) {
        s[0] = source(a.part[0].m, tile * 8 + g);
        s[1] = source(a.part[1].m, tile * 8 + g);
        return;
    }
    const Part* part = part_of(a, tile);
    u32 row = (tile - part->first_block) * TILE_OUTPUTS + g;
    s[0] = source(part->m, row);
    s[1] = source(part->m, row + 8);
}

// Loads chunk `at`; with the first of LENT also the scales of those that follow it, up to that of chunk `chunks`.
DEVICE void load_slice(const Source* sources, u32 at, u32 chunks, bool first, Slice* s) {
    UNROLL
    for (int i = 0; i < 2; i++) {
        UNROLL
        for (int l = 0; l < LOADS; l++) s->q[i][l] = stream(sources[i].q + (at * LOADS + l) * 4);
#if PLAIN == 0
        if (first) {
            u32 own = at * GROUPS + threadIdx.x % 4, last = chunks * GROUPS - 1;
            own = own < last ? own : last;
            s->scale[i] = scale_bits(sources[i].scales, own, sources[i].kind);
            if (BIASED) s->bias[i] = scale_bits(sources[i].biases, own, sources[i].kind);
            s->kinds = sources[0].kind | sources[1].kind << 8;
        }
#endif
    }
}

// Loads the first of the chunks `begin` to `end`.
template <int AHEAD>
DEVICE void fill(const Source* sources, u32 begin, u32 end, u32 chunks, Slice* ahead) {
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        if (begin + i < end) load_slice(sources, begin + i, chunks, i % LENT == 0, ahead + i);
}

#if PLAIN == 0
// Two nibbles as the numbers 128 + nibble.
DEVICE u32 nibbles(u32 word, int shift) { return (word >> shift & 0x000f000fu) | 0x43004300u; }

// What a quant is more than itself where it is multiplied: 128 for each nibble, and the centre.
#define MORE ((QUANT_BITS == 8 ? 17.0f * 128.0f : 128.0f) + CENTRE)

// Scales and what the sum of x is multiplied by, for the two rows: those that a thread lends.
struct Lent {
    float scale[2];
    float base[2];
};

DEVICE Lent lend(const Slice& s) {
    Lent l;
    UNROLL
    for (int i = 0; i < 2; i++) {
        u32 kind = s.kinds >> 8 * i & 255u;
        l.scale[i] = scale_of(s.scale[i], kind);
        l.base[i] = __fmaf_rn(-MORE, l.scale[i], BIASED ? scale_of(s.bias[i], kind) : 0.0f);
    }
    return l;
}
#else
struct Lent {};

DEVICE Lent lend(const Slice&) { return Lent(); }
#endif

// Adds the products of one chunk. `xs` is the chunk of the staged rows, `apart` elements from one to the next; `sums`
// those of its groups; `turn` says whose scales they are. acc [tiles of 8 rows of x]
template <int ROWS, int TILES>
DEVICE void products(const Slice& s, const Lent& lent, u32 turn, const u16* xs, u32 apart, const float* sums,
                     u32 sums_apart, float (*acc)[4]) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL
    for (int n = 0; n < TILES; n++) {
        const uint4* x = (const uint4*)(xs + (ROWS == 1 ? 0 : n * 8 + g) * apart) + t;
#if PLAIN > 0
        uint4 b[LOADS];
        UNROLL
        for (int l = 0; l < LOADS; l++) b[l] = x[l * 4];
        // Two chains of products, so that one need not wait for the other.
        float other[4] = {};
        UNROLL
        for (int l = 0; l < LOADS; l++) {
            uint4 q = s.q[0][l], r = s.q[1][l];
            u32 a_low[4] = {q.x, r.x, q.y, r.y}, b_low[2] = {b[l].x, b[l].y};
            u32 a_high[4] = {q.z, r.z, q.w, r.w}, b_high[2] = {b[l].z, b[l].w};
            multiply(acc[n], a_low, b_low);
            multiply(other, a_high, b_high);
        }
        UNROLL
        for (int i = 0; i < 4; i++) acc[n][i] += other[i];
#else
        float c[GROUPS][4] = {};
#if QUANT_BITS == 8
        float high[GROUPS][4] = {};
#endif
        UNROLL
        for (int l = 0; l < LOADS; l++) {
            uint4 runs[RUNS];
            UNROLL
            for (int i = 0; i < RUNS; i++) runs[i] = x[(l * RUNS + i) * 4];
            UNROLL
            for (int i = 0; i < RUNS; i += 2) {
                UNROLL
                for (int p = 0; p < 4; p++) {
                    u32 b[2] = {word_of(runs[i], p), word_of(runs[i + 1], p)};
                    // Words of the two lanes in which pair p lies, and its place there.
#if QUANT_BITS == 8
                    int first = 2 * i + p / 2, second = 2 * (i + 1) + p / 2, shift = p % 2 * 8;
                    u32 h[4] = {nibbles(word_of(s.q[0][l], first), shift + 4), nibbles(word_of(s.q[1][l], first), shift + 4),
                                nibbles(word_of(s.q[0][l], second), shift + 4),
                                nibbles(word_of(s.q[1][l], second), shift + 4)};
                    multiply(high[32 * p / GROUP], h, b);
#else
                    int first = i, second = i + 1, shift = p * 4;
#endif
                    u32 a[4] = {nibbles(word_of(s.q[0][l], first), shift), nibbles(word_of(s.q[1][l], first), shift),
                                nibbles(word_of(s.q[0][l], second), shift), nibbles(word_of(s.q[1][l], second), shift)};
                    multiply(c[32 * p / GROUP], a, b);
                }
            }
        }
        UNROLL
        for (int k = 0; k < GROUPS; k++) {
            u32 lender = g * 4 + turn * GROUPS + k;
            UNROLL
            for (int i = 0; i < 2; i++) {
                float scale = __shfl_sync(FULL, lent.scale[i], lender, 32), base = __shfl_sync(FULL, lent.base[i], lender, 32);
                // With one row of x all columns are alike.
                UNROLL
                for (int j = 0; j < (ROWS == 1 ? 1 : 2); j++) {
                    float sum = sums[(ROWS == 1 ? 0 : n * 8 + 2 * t + j) * sums_apart + k];
                    float v = c[k][2 * i + j];
#if QUANT_BITS == 8
                    v = __fmaf_rn(16.0f, high[k][2 * i + j], v);
#endif
                    acc[n][2 * i + j] = __fmaf_rn(scale, v, __fmaf_rn(base, sum, acc[n][2 * i + j]));
                }
            }
        }
#endif
    }
}

// Writes the outputs of a tile, whose sums lie in shared memory by warps; a warp does it. red [warps, TILE_OUTPUTS, ROWS]
template <int ROWS, bool GATED>
DEVICE void finish_tile(const LinearArgs& a, u32 tile, u32 rows, u32 warps, const float* red) {
    const u32 outputs = GATED ? 8 : TILE_OUTPUTS;
    const Part& part = GATED ? a.part[0] : *part_of(a, tile);
    for (u32 i = threadIdx.x % 32; i < outputs * ROWS; i += 32) {
        u32 r = i / ROWS, t = i % ROWS, n = (GATED ? tile : tile - part.first_block) * outputs + r;
        if (n >= part.m.rows || t >= rows) continue;
        float dot = 0.0f, up = 0.0f;
        for (u32 k = 0; k < warps; k++) {
            dot += red[(k * TILE_OUTPUTS + r) * ROWS + t];
            if (GATED) up += red[(k * TILE_OUTPUTS + 8 + r) * ROWS + t];
        }
        if (!GATED) {
            finish(a, part, t, n, dot);
            continue;
        }
        float silu = silu_of(biased(part, n, dot));
        part.out[(u64)t * part.out_stride + n] = __fmul_rn(silu, biased(a.part[1], n, up));
    }
}

// A tile is 16 outputs of one matrix. With GATED it is eight outputs of the first two, which are gate and up: out of the
// first takes silu(gate) * up.
template <int ROWS, int AHEAD, bool GATED>
DEVICE void gemv(const LinearArgs& a, u16* xs, float* sums, float* inv, float* red) {
    const int TILES = ROWS > 8 ? 2 : 1, BUFFERS = ROWS > 8 ? 1 : 2;
    const u32 apart = STAGED / ROWS + (ROWS > 1 ? APART : 0);
    // Chunks that are staged at once, and how many of them each warp takes.
    const u32 piece = STAGED / ROWS / CHUNK;
    u32 cols = a.part[0].m.cols, chunks = a.part[0].m.chunks;
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 staged = chunks < piece ? chunks : piece;
    u32 each = (staged + warps - 1) / warps, begin = warp * each;
    u32 end = begin + each < staged ? begin + each : staged;

    u32 tile = blockIdx.x;
    Source sources[2];
    Slice ahead[AHEAD];
    sources_of<GATED>(a, tile, sources);
    fill<AHEAD>(sources, begin, end, chunks, ahead);
    if (a.norm)
        for (u32 k = threadIdx.x * 32; k < cols; k += blockDim.x * 32) touch(a.norm + k);
    let_next_start();
    await_previous();
    // A step of a bucket for one row has one.
    u32 rows = ROWS == 1 ? 1 : rows_of(a.step, a.of_selected);
    if (a.norm) measure<ROWS>(a, rows, cols, red, inv);
    stage<ROWS>(a, rows, cols, 0, staged, apart, inv, xs, sums);
    __syncthreads();

    for (u32 turn = 0;; turn++) {
        float acc[TILES][4] = {};
        for (u32 first = 0;;) {
            Lent lent;
            u32 left = chunks - first < staged ? chunks - first : staged, last = end < left ? end : left;
            for (u32 c = begin; c < last; c += AHEAD) {
                UNROLL
                for (int i = 0; i < AHEAD; i++) {
                    u32 at = c + i;
                    if (at >= last) continue;
                    u32 owner = (at - begin) % LENT;
                    if (owner == 0) lent = lend(ahead[i]);
                    products<ROWS, TILES>(ahead[i], lent, owner, xs + at * CHUNK, apart, sums + at * GROUPS,
                                          piece * GROUPS, acc);
                    u32 next = at + AHEAD;
                    if (next < last) load_slice(sources, first + next, chunks, (next - begin) % LENT == 0, ahead + i);
                }
            }
            first += staged;
            if (first >= chunks) break;
            left = chunks - first < staged ? chunks - first : staged, last = end < left ? end : left;
            fill<AHEAD>(sources, first + begin, first + last, chunks, ahead);
            __syncthreads();
            stage<ROWS>(a, rows, cols, first, left, apart, inv, xs, sums);
            __syncthreads();
        }
        // Loads of the next tile are under way while this one ends.
        u32 done = tile;
        tile += gridDim.x;
        if (tile < a.tiles) {
            sources_of<GATED>(a, tile, sources);
            fill<AHEAD>(sources, begin, end, chunks, ahead);
        }
        float* mine = red + turn % BUFFERS * MOST_WARPS * TILE_OUTPUTS * ROWS;
        if (BUFFERS == 1) __syncthreads();
        UNROLL
        for (int n = 0; n < TILES; n++) {
            UNROLL
            for (int k = 0; k < 4; k++) {
                u32 r = g + k / 2 * 8, column = n * 8 + 2 * t + k % 2;
                if (column < ROWS) mine[(warp * TILE_OUTPUTS + r) * ROWS + column] = acc[n][k];
            }
        }
        __syncthreads();
        if (warp == turn % warps) finish_tile<ROWS, GATED>(a, done, rows, warps, mine);
        if (tile >= a.tiles) break;
        if (chunks > staged) {
            __syncthreads();
            stage<ROWS>(a, rows, cols, 0, staged, apart, inv, xs, sums);
            __syncthreads();
        }
    }
}

#define GEMV(name, rows, ahead, gated)                                               \
    KERNEL(name, LinearArgs, GEMV_THREADS, rows > 8 ? 1 : 2) {                       \
        __shared__ __align__(16) u16 xs[STAGED + (rows > 1 ? rows * APART : 0)];     \
        __shared__ float sums[STAGED / CHUNK * GROUPS];                              \
        __shared__ float inv[rows];                                                  \
        __shared__ float red[(rows > 8 ? 1 : 2) * MOST_WARPS * TILE_OUTPUTS * rows]; \
        gemv<rows, ahead, gated>(a, xs, sums, inv, red);                             \
    }

// Chunks that a warp has under way.
#define AHEAD_ONE (QUANT_BITS == 4 ? 4 : QUANT_BITS == 8 ? 1 : 2)
#define AHEAD_MORE 1

GEMV(gemv_1, 1, AHEAD_ONE, false)
GEMV(gemv_8, 8, AHEAD_MORE, false)
GEMV(gemv_16, 16, AHEAD_MORE, false)
GEMV(gemv_gated_1, 1, AHEAD_ONE, true)
GEMV(gemv_gated_8, 8, AHEAD_MORE, true)
GEMV(gemv_gated_16, 16, AHEAD_MORE, true)
