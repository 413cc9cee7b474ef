// Matrix products for few rows on tensor cores, in an order of their own: out[t, n] = dot(x[t], w[n]) (+ bias[n]), added
// to out when accumulating.
//
// A launch may carry up to three matrices that read the same rows, the norm that makes those rows, and the gated unit
// that two of them feed.
//
// math: 16 outputs are the rows of a tensor-core product, rows of x its columns; or, of a matrix of few rows, eight outputs with
//   two halves of their columns. The warps of a block share the columns of such a tile, each a run of chunks, and their sums
//   meet in shared memory; a block goes from tile to tile. Quants are multiplied as the BF16 numbers 128 + nibble, which are
//   exact, and each group is put right by its scale, its bias and its sum of x
// shapes: x [T, k] with T at most ROWS, weight [n, k], bias [n], out [T, n]
// layout: weights as in matrix.cuh: a quad of threads reads neighbouring 16 bytes of a row; x is staged in the order in
//   which its threads meet the weights
// precision: x rounded to BF16; products of BF16 exact, sums in F32 in an order of their own
// preconditions: calls round x to BF16; groups of at least 32 columns; out is not x; at most GEMV_THREADS threads; halves: an
//   even number of chunks, of which all are staged at once
// cost: the packed matrix once
// tolerance: `tare_ops::conformance`, order free
// wins: a weight costs a fraction of an instruction, whatever its packing, and up to 8 rows cost what one costs; loads run
//   on from tile to tile, and into the kernel before
// loses: a matrix of few rows has few tiles, so that few blocks read it, also in halves; every block norms and rounds all of x
// fallback: linear.cu
// evidence: 20261130T124007Z-4ca4379e48ce704a, the whole token, before blocks of several rows were given four warps
// source: none

// Rows of a tensor-core product, and what they are: 16 outputs of one matrix; eight outputs of each of the first two, which
// are gate and up; eight outputs of one, a row for each half of their columns.
#define TILE_ROWS 16
#define WHOLE 0
#define GATED 1
#define HALVES 2

// Outputs of a tile.
DEVICE constexpr u32 outputs_of(int kind) { return kind == WHOLE ? 16 : 8; }

// What a thread holds of one chunk of its two rows; with the first of LENT chunks also a scale and a bias of each row.
struct Slice {
    uint4 q[2][LOADS];
#if PLAIN == 0
    u32 scale[2];
    u32 bias[2];
#endif
};

// What a thread reads of one of its two rows, `g` and `g + 8` of the tile.
struct Source {
    const uint4* q;
    const u8* scales;
    const u8* biases;
    u32 kind;
};

DEVICE u32 size_of_scale(u32 kind) { return kind == 0 ? 4 : 2; }

DEVICE Source source(const Matrix& m, u32 row) {
    u64 at = (u64)(row < m.rows ? row : m.rows - 1) * m.chunks;
    Source s;
    s.q = (const uint4*)m.quants + at * LOADS * 4 + threadIdx.x % 4;
    s.scales = (const u8*)m.scales + at * GROUPS * size_of_scale(m.scale_kind);
    s.biases = (const u8*)m.biases + at * GROUPS * size_of_scale(m.scale_kind);
    s.kind = m.scale_kind;
    return s;
}

// A scale as it lies in memory: it is made a number when it is wanted, so that nothing waits for the load.
DEVICE u32 scale_bits(const u8* scales, u32 at, u32 kind) {
    const u8* from = scales + (u64)at * size_of_scale(kind);
#ifdef TARE_HOST
    return kind == 0 ? *(const u32*)from : *(const u16*)from;
#else
    // One of two loads, and no branch.
    u32 bits;
    asm volatile(
        "{ .reg .pred wide; setp.eq.u32 wide, %2, 0; @wide ld.global.nc.u32 %0, [%1]; @!wide ld.global.nc.u16 %0, [%1]; }"
        : "=r"(bits)
        : "l"(from), "r"(kind));
    return bits;
#endif
}

DEVICE float scale_of(u32 bits, u32 kind) {
    float half = from_f16(bits), other = as_float(kind == 2 ? bits << 16 : bits);
    return kind == 1 ? half : other;
}

// The matrix that a tile belongs to.
DEVICE const Part* part_of(const LinearArgs& a, u32 tile) {
    const Part* part = a.part;
    if (a.parts > 1 && tile >= a.part[1].first_block) part = a.part + 1;
    if (a.parts > 2 && tile >= a.part[2].first_block) part = a.part + 2;
    return part;
}

// The two sources of a tile; `half` is the first chunk of the second of two halves.
template <int KIND>
DEVICE void sources_of(const LinearArgs& a, u32 tile, u32 half, Source* s) {
    u32 g = threadIdx.x % 32 / 4;
    const Part* part = KIND == GATED ? a.part : part_of(a, tile);
    u32 row = (tile - part->first_block) * outputs_of(KIND) + g;
    s[0] = source(part->m, row);
    s[1] = KIND == HALVES ? s[0] : source(KIND == GATED ? a.part[1].m : part->m, KIND == GATED ? row : row + 8);
    if (KIND == HALVES) {
        s[1].q += half * LOADS * 4;
        // A thread has scales of one half, whose sums it has.
        u32 scales = threadIdx.x % 4 < 2 ? 0 : half * GROUPS * size_of_scale(s[1].kind);
        s[0].scales = s[1].scales += scales, s[0].biases = s[1].biases += scales;
    }
}

// Loads chunk `at`; with the first of LENT also the scales of those that follow it, up to that of chunk `chunks`: of both rows
// those of a chunk or group, or of one of two halves those of two.
template <int KIND>
DEVICE void load_slice(const Source* sources, u32 at, u32 chunks, bool first, Slice* s) {
    UNROLL
    for (int i = 0; i < 2; i++) {
        UNROLL
        for (int l = 0; l < LOADS; l++) s->q[i][l] = stream(sources[i].q + (at * LOADS + l) * 4);
    }
#if PLAIN == 0
    if (!first) return;
    u32 t = threadIdx.x % 4, last = chunks * GROUPS - 1;
    UNROLL
    for (int i = 0; i < 2; i++) {
        u32 own = at * GROUPS + (KIND == HALVES ? t % 2 * 2 + i : t);
        own = own < last ? own : last;
        s->scale[i] = scale_bits(sources[i].scales, own, sources[i].kind);
        if (BIASED) s->bias[i] = scale_bits(sources[i].biases, own, sources[i].kind);
    }
#endif
}

// Loads the first of the chunks `begin` to `end`.
template <int AHEAD, int KIND>
DEVICE void fill(const Source* sources, u32 begin, u32 end, u32 chunks, Slice* ahead) {
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        if (begin + i < end) load_slice<KIND>(sources, begin + i, chunks, i % LENT == 0, ahead + i);
}

#if PLAIN == 0
// Two nibbles as the numbers 128 + nibble.
DEVICE u32 nibbles(u32 word, int shift) {
    u32 low = word >> shift;
#ifdef TARE_HOST
    return (low & 0x000f000fu) | 0x43004300u;
#else
    // The compiler makes two instructions of it.
    u32 both;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(both) : "r"(low), "n"(0x000f000f), "r"(0x43004300u));
    return both;
#endif
}

// What a quant is more than itself where it is multiplied: 128 for each nibble, and the centre.
#define MORE ((QUANT_BITS == 8 ? 17.0f * 128.0f : 128.0f) + CENTRE)
// Sums that the products of a group are spread over, so that one need not wait for the other.
#define CHAINS (GROUPS == 1 ? 2 : 1)

// Scales and what the sum of x is multiplied by, for the two rows: those that a thread has of LENT chunks.
struct Lent {
    float scale[2];
    float base[2];
};

DEVICE Lent lend(const Slice& s, const u32* kind) {
    Lent l;
    UNROLL
    for (int i = 0; i < 2; i++) {
        l.scale[i] = scale_of(s.scale[i], kind[i]);
        l.base[i] = __fmaf_rn(-MORE, l.scale[i], BIASED ? scale_of(s.bias[i], kind[i]) : 0.0f);
    }
    return l;
}
#else
struct Lent {};

DEVICE Lent lend(const Slice&, const u32*) { return Lent(); }
#endif

#if PLAIN == 0
// The products of the quants of one chunk as they lie there, by groups. `x` is where the thread reads. c [GROUPS][4]
DEVICE void products_of_quants(const Slice& s, const uint4* x, float (*c)[4]) {
    float sum[GROUPS * CHAINS][4] = {};
#if QUANT_BITS == 8
    float high[GROUPS * CHAINS][4] = {};
#endif
    UNROLL
    for (int l = 0; l < LOADS; l++) {
        UNROLL
        for (int n = 0; n < RUNS; n++) {
            // Two lanes, first and second, and two pairs of their columns.
            int i = n / 2 * 2;
            uint4 both = x[(l * RUNS + n) * 4];
            UNROLL
            for (int k = 0; k < 2; k++) {
                int p = n % 2 * 2 + k, to = 32 * p / GROUP * CHAINS + p % CHAINS;
                u32 b[2] = {k == 0 ? both.x : both.z, k == 0 ? both.y : both.w};
                // Words in which pair p of the two lanes lies, and its place there.
#if QUANT_BITS == 8
                int first = 2 * i + p / 2, second = 2 * (i + 1) + p / 2, shift = p % 2 * 8;
                u32 h[4] = {nibbles(word_of(s.q[0][l], first), shift + 4), nibbles(word_of(s.q[1][l], first), shift + 4),
                            nibbles(word_of(s.q[0][l], second), shift + 4), nibbles(word_of(s.q[1][l], second), shift + 4)};
                multiply(high[to], h, b);
#else
                int first = i, second = i + 1, shift = p * 4;
#endif
                u32 a[4] = {nibbles(word_of(s.q[0][l], first), shift), nibbles(word_of(s.q[1][l], first), shift),
                            nibbles(word_of(s.q[0][l], second), shift), nibbles(word_of(s.q[1][l], second), shift)};
                multiply(sum[to], a, b);
            }
        }
    }
    UNROLL
    for (int k = 0; k < GROUPS * 4; k++) {
        float v = 0.0f;
        UNROLL
        for (int i = CHAINS - 1; i >= 0; i--) {
            v += sum[k / 4 * CHAINS + i][k % 4];
#if QUANT_BITS == 8
            v = __fmaf_rn(16.0f, high[k / 4 * CHAINS + i][k % 4], v);
#endif
        }
        c[k / 4][k % 4] = v;
    }
}

// Adds the groups of one chunk whose scales the thread has, for one row of x: its columns are alike, all or those of a half,
// so that every thread of a quad has every group. The quad is added up at the end of the tile. acc [4]
template <int KIND>
DEVICE void add_own(const Lent& lent, u32 turn, float (*c)[4], const float* sums, float* acc) {
    u32 t = threadIdx.x % 4;
    UNROLL
    for (int i = 0; i < 2; i++) {
        // The group is the thread's `own` of the chunk, when the chunk has so many.
        u32 place = KIND == HALVES ? t % 2 * 2 + i : t, own = place % GROUPS;
        float v = 0.0f;
        UNROLL
        for (int k = 0; k < GROUPS; k++) {
            float of = KIND == HALVES && t < 2 ? c[k][0] : KIND == HALVES ? c[k][2] : c[k][2 * i];
            v = k == 0 || own == k ? of : v;
        }
        float* to = acc + (KIND == HALVES ? 0 : 2 * i);
        v = __fmaf_rn(lent.scale[i], v, __fmaf_rn(lent.base[i], sums[own], *to));
        *to = GROUPS == 4 || place / GROUPS == turn ? v : *to;
    }
}

// Adds the groups of one chunk for eight rows of x, with the scales of the threads that have them. acc [4]
DEVICE void add_lent(const Lent& lent, u32 turn, float (*c)[4], const float* sums, u32 sums_apart, float* acc) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL
    for (int k = 0; k < GROUPS; k++) {
        u32 lender = g * 4 + turn * GROUPS + k;
        UNROLL
        for (int i = 0; i < 2; i++) {
            float scale = __shfl_sync(FULL, lent.scale[i], lender, 32);
            float base = __shfl_sync(FULL, lent.base[i], lender, 32);
            UNROLL
            for (int j = 0; j < 2; j++) {
                float sum = sums[(2 * t + j) * sums_apart + k];
                acc[2 * i + j] = __fmaf_rn(scale, c[k][2 * i + j], __fmaf_rn(base, sum, acc[2 * i + j]));
            }
        }
    }
}

// Adds the products of one chunk to the sums of a tile. `x` is where the thread reads, `sums` those of the groups of the staged
// rows; `turn` says whose scales they are. acc [tiles of 8 rows of x]
template <int ROWS, int TILES, int KIND>
DEVICE void products(const Slice& s, const Lent& lent, u32 turn, const u16* x, u32 apart, const float* sums, u32 sums_apart,
                     float (*acc)[4]) {
    UNROLL
    for (int n = 0; n < TILES; n++) {
        float c[GROUPS][4];
        products_of_quants(s, (const uint4*)(x + n * 8 * apart), c);
        if (ROWS == 1) add_own<KIND>(lent, turn, c, sums, acc[n]);
        else add_lent(lent, turn, c, sums + n * 8 * sums_apart, sums_apart, acc[n]);
    }
}

// Brings the sums of one row of x together, which the threads of a quad have parts of.
template <int KIND>
DEVICE void add_quad(float* acc) {
    UNROLL
    for (int i = 0; i < (KIND == HALVES ? 1 : 4); i += 2) {
        acc[i] += __shfl_xor_sync(FULL, acc[i], 1, 32);
        acc[i] += __shfl_xor_sync(FULL, acc[i], 2, 32);
    }
}
#else
template <int ROWS, int TILES, int KIND>
DEVICE void products(const Slice& s, const Lent&, u32, const u16* x, u32 apart, const float*, u32, float (*acc)[4]) {
    UNROLL
    for (int n = 0; n < TILES; n++) {
        uint4 b[LOADS];
        UNROLL
        for (int l = 0; l < LOADS; l++) b[l] = ((const uint4*)(x + n * 8 * apart))[l * 4];
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
    }
}

// Every thread of a quad has all of it, or of two halves those with t < 2 the first and the others the second.
template <int KIND>
DEVICE void add_quad(float* acc) {
    if (KIND != HALVES) return;
    acc[0] = threadIdx.x % 4 < 2 ? acc[0] : acc[2];
    acc[0] += __shfl_xor_sync(FULL, acc[0], 2, 32);
}
#endif

// Output `r` of a tile in row `t`, or none.
DEVICE float* output_of(const Part& part, u32 tile, u32 outputs, u32 r, u32 t) {
    u32 n = (tile - part.first_block) * outputs + r;
    return n < part.m.rows ? part.out + (u64)t * part.out_stride + n : 0;
}

// Writes the outputs of a tile, whose sums lie in shared memory by warps; a warp does it. `before` is what lane r adds output
// r of one row to. red [warps, TILE_ROWS, ROWS]
template <int ROWS, int KIND>
DEVICE void finish_tile(const LinearArgs& a, u32 tile, u32 rows, u32 warps, const float* red, float before) {
    const u32 outputs = outputs_of(KIND);
    const Part& part = KIND == GATED ? a.part[0] : *part_of(a, tile);
    for (u32 i = threadIdx.x % 32; i < outputs * ROWS; i += 32) {
        u32 r = i / ROWS, t = i % ROWS, n = (tile - part.first_block) * outputs + r;
        if (n >= part.m.rows || t >= rows) continue;
        float dot = 0.0f, up = 0.0f;
        UNROLL
        for (u32 k = 0; k < MOST_WARPS; k++) {
            // Read whether it is there or not, so that no sum waits for the one before.
            float first = red[(k * TILE_ROWS + r) * ROWS + t], second = 0.0f;
            if (KIND == GATED) second = red[(k * TILE_ROWS + 8 + r) * ROWS + t];
            dot += k < warps ? first : 0.0f, up += k < warps ? second : 0.0f;
        }
        float* out = part.out + (u64)t * part.out_stride + n;
        float value = biased(part, n, dot);
        if (KIND == GATED) *out = __fmul_rn(silu_of(value), biased(a.part[1], n, up));
        else *out = a.accumulate ? __fadd_rn(ROWS == 1 ? before : *out, value) : value;
    }
}

// What lane r adds output r of a tile to, with one row.
template <int KIND>
DEVICE float added_to(const LinearArgs& a, u32 tile) {
    const Part& part = *part_of(a, tile);
    u32 r = threadIdx.x % 32, n = (tile - part.first_block) * outputs_of(KIND) + r;
    return r < outputs_of(KIND) && n < part.m.rows ? part.out[n] : 0.0f;
}

template <int ROWS, int AHEAD, int KIND>
DEVICE void gemv(const LinearArgs& a, u16* xs, float* sums, float* squares, float* red) {
    const int TILES = ROWS > 8 ? 2 : 1, BUFFERS = ROWS > 8 ? 1 : 2;
    // Whether the places of `ahead` get chunks of the next tile as they become free, or all at once; the latter where little is
    // computed for a byte.
    const bool ONE_BY_ONE = PLAIN > 0 || GROUPS > 1;
    // Whether each place of `ahead` always has the same part in lending scales.
    const bool FIXED = AHEAD % LENT == 0;
    const u32 apart = STAGED / ROWS + (ROWS > 1 ? APART : 0);
    // Chunks of a source; those that are staged at once, and those of them that this warp stages and multiplies.
    const u32 piece = STAGED / ROWS / CHUNK;
    u32 cols = a.part[0].m.cols, chunks = a.part[0].m.chunks, half = 0;
    if (KIND == HALVES) half = chunks /= 2;
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 staged = chunks < piece ? chunks : piece;
    u32 each = (staged + warps - 1) / warps, begin = warp * each;
    u32 end = begin + each < staged ? begin + each : staged;
    // Where the thread reads a staged chunk: columns of the product are rows of x, or all the one row or the half of it that
    // their sources are of.
    const u16* own = xs + (ROWS > 1 ? g * apart : KIND == HALVES && g >= 4 ? half * CHUNK : 0) + t * 8;
    const float* own_sums = sums + (KIND == HALVES && t >= 2 ? half * GROUPS : 0);

    u32 tile = blockIdx.x;
    Source sources[2];
    Slice ahead[AHEAD];
    sources_of<KIND>(a, tile, half, sources);
    fill<AHEAD, KIND>(sources, begin, end, chunks, ahead);
    Early early;
    if (ROWS == 1 && a.norm) expect_norm(a.norm, begin, end, cols, early);
    let_next_start();
    await_previous();
    // A step of a bucket for one row has one; of its rows none may be selected.
    u32 rows = ROWS == 1 && !a.of_selected ? 1 : rows_of(a.step, a.of_selected);
    if (rows == 0) return;
    if (ROWS == 1) expect_row(a.x, begin, end, half, cols);
    if (a.norm) measure<ROWS>(a, rows, cols, squares, early);
    // What was measured is what is staged when a warp has all of its chunks at once, and no row in halves.
    bool measured = HAS_EARLY && ROWS == 1 && a.norm && chunks <= staged && KIND != HALVES;
    stage<ROWS>(a, rows, cols, 0, begin, end, half, apart, squares, measured, early, xs, sums);
    __syncwarp();

    for (u32 turn = 0;; turn++) {
        float acc[TILES][4] = {};
        bool finishes = warp == turn % warps;
        // It is on its way while the outputs are made.
        float before = ROWS == 1 && KIND != GATED && a.accumulate && finishes ? added_to<KIND>(a, tile) : 0.0f;
        u32 kind[2] = {sources[0].kind, sources[1].kind}, done = tile;
        for (u32 first = 0;;) {
            Lent lent;
            u32 left = chunks - first < staged ? chunks - first : staged, last = end < left ? end : left;
            bool last_piece = first + staged >= chunks;
            for (u32 c = begin; c < last || (last_piece && c == begin); c += AHEAD) {
                // Where a place of `ahead` has no further chunk of this tile it gets one of the next, so that loads run on.
                bool goes_on = last_piece && c + AHEAD >= last;
                if (goes_on) {
                    tile += gridDim.x;
                    if (tile < a.tiles) sources_of<KIND>(a, tile, half, sources);
                }
                UNROLL
                for (int i = 0; i < AHEAD; i++) {
                    u32 at = c + i, next = at + AHEAD;
                    u32 owner = FIXED ? i % LENT : (at - begin) % LENT;
                    if (at < last) {
                        if (owner == 0) lent = lend(ahead[i], kind);
                        products<ROWS, TILES, KIND>(ahead[i], lent, owner, own + at * CHUNK, apart, own_sums + at * GROUPS,
                                                    piece * GROUPS, acc);
                    }
                    bool lends = FIXED ? i % LENT == 0 : (next - begin) % LENT == 0;
                    if (!goes_on) {
                        if (next < last) load_slice<KIND>(sources, first + next, chunks, lends, ahead + i);
                    } else if (ONE_BY_ONE && tile < a.tiles && begin + i < end) {
                        load_slice<KIND>(sources, begin + i, chunks, i % LENT == 0, ahead + i);
                    }
                }
                if (!ONE_BY_ONE && goes_on && tile < a.tiles) fill<AHEAD, KIND>(sources, begin, end, chunks, ahead);
            }
            first += staged;
            if (first >= chunks) break;
            left = chunks - first < staged ? chunks - first : staged, last = end < left ? end : left;
            fill<AHEAD, KIND>(sources, first + begin, first + last, chunks, ahead);
            __syncwarp();
            stage<ROWS>(a, rows, cols, first, begin, last, half, apart, squares, false, early, xs, sums);
            __syncwarp();
        }
        float* mine = red + turn % BUFFERS * MOST_WARPS * TILE_ROWS * ROWS;
        if (BUFFERS == 1) __syncthreads();
        if (ROWS == 1) add_quad<KIND>(acc[0]);
        UNROLL
        for (int n = 0; n < TILES; n++) {
            UNROLL
            for (int k = 0; k < (KIND == HALVES ? 1 : 4); k++) {
                u32 r = g + k / 2 * 8, column = n * 8 + 2 * t + k % 2;
                if (column < ROWS) mine[(warp * TILE_ROWS + r) * ROWS + column] = acc[n][k];
            }
        }
        __syncthreads();
        if (finishes) finish_tile<ROWS, KIND>(a, done, rows, warps, mine, before);
        if (tile >= a.tiles) break;
        if (chunks > staged) {
            __syncwarp();
            stage<ROWS>(a, rows, cols, 0, begin, end, half, apart, squares, false, early, xs, sums);
            __syncwarp();
        }
    }
}

#define GEMV(name, rows, ahead, kind)                                             \
    KERNEL(name, LinearArgs, GEMV_THREADS, rows > 8 ? 1 : 3) {                    \
        __shared__ __align__(16) u16 xs[STAGED + (rows > 1 ? rows * APART : 0)];  \
        __shared__ float sums[STAGED / CHUNK * GROUPS];                           \
        __shared__ float squares[rows > MOST_WARPS ? rows : MOST_WARPS];          \
        __shared__ float red[(rows > 8 ? 1 : 2) * MOST_WARPS * TILE_ROWS * rows]; \
        gemv<rows, ahead, kind>(a, xs, sums, squares, red);                       \
    }

// Chunks that a warp has under way.
#define AHEAD_ONE (QUANT_BITS == 4 ? 4 : QUANT_BITS == 8 ? 1 : 2)
#define AHEAD_MORE 1

GEMV(gemv_1, 1, AHEAD_ONE, WHOLE)
GEMV(gemv_8, 8, AHEAD_MORE, WHOLE)
GEMV(gemv_16, 16, AHEAD_MORE, WHOLE)
GEMV(gemv_gated_1, 1, AHEAD_ONE, GATED)
GEMV(gemv_gated_8, 8, AHEAD_MORE, GATED)
GEMV(gemv_gated_16, 16, AHEAD_MORE, GATED)
GEMV(gemv_halves_1, 1, AHEAD_ONE, HALVES)
