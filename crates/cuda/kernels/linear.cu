// Matrix products: out[t, n] = dot(x[t], w[n]) (+ bias[n]), added to out when accumulating.
//
// A launch for few rows may carry more than one call: up to three matrices that read the same rows, the norm that makes
// those rows, and the gated unit that two of them feed. Each gives the bits that it gives alone.
//
// math: 16 running sums a dot product, each a chain of fused multiply-adds, then a tree: the reference's order
// shapes: x [T, k], weight [n, k], bias [n], out [T, n]
// layout: weights as in matrix.cuh; x and out F32 rows of a stride of their own
// precision: weights dequantized exactly as the codecs do, products fused into F32 sums; BF16 rounding of x on request
// preconditions: out is not x; with a norm all columns are staged at once: k times the kernel's rows at most 8192
// cost: the packed matrix once for up to 16 rows (few); once for 32 rows and 32 outputs of a tile (many)
// tolerance: bit-identical to the reference
// wins: one half-warp is one dot product, so that keeping the order costs no shuffles until the end
// loses: prefill runs on F32 multiply-adds, since tensor cores sum in an order of their own
// fallback: none: it takes every shape
// evidence: in whole requests on an H200: 20261129T234538Z-7f4112c6219a6842, 20261129T234532Z-7d2ceaf39e4f6114
// source: none

// Where column k of a staged row lies: the eight columns of a lane in two runs of four, so that a lane reads 16 bytes
// at once and neighbouring lanes read neighbouring bytes.
DEVICE u32 staged(u32 k) {
    u32 j = k % CHUNK / LANES;
    return k / CHUNK * CHUNK + j / 4 * 64 + k % LANES * 4 + j % 4;
}

#define FEW_THREADS 128
#define FEW_OUTPUTS (FEW_THREADS / LANES)
// Columns of x that are staged at once, all rows together.
#define FEW_STAGED 8192
// Normalises the staged rows in place; all of their columns are there.
template <int ROWS>
DEVICE void normalise(const LinearArgs& a, u32 cols, float* xs) {
    const u32 piece = FEW_STAGED / ROWS;
    __shared__ float inv[ROWS];
    u32 lane = threadIdx.x % LANES;
    for (u32 first = 0; first < ROWS; first += FEW_OUTPUTS) {
        u32 t = first + threadIdx.x / LANES;
        float acc = 0.0f;
        if (t < ROWS)
            for (u32 k = lane; k < cols; k += LANES) {
                float x = xs[t * piece + staged(k)];
                acc = __fmaf_rn(x, x, acc);
            }
        float dot = tree(acc);
        if (lane == 0 && t < ROWS) inv[t] = inverse_rms(dot, cols, a.eps);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < cols * ROWS; i += FEW_THREADS) {
        u32 t = i / cols, k = i % cols;
        float* x = xs + t * piece + staged(k);
        *x = taken(a, __fmul_rn(__fmul_rn(*x, inv[t]), a.norm[k]));
    }
    __syncthreads();
}

// Stages columns of all rows, from chunk `first` on, as many as there is room for; normalised or rounded on request.
template <int ROWS>
DEVICE void stage(const LinearArgs& a, const Matrix& m, u32 first, float* xs) {
    const u32 piece = FEW_STAGED / ROWS;
    u32 rows = rows_of(a.step, a.of_selected);
    u32 begin = first * CHUNK, left = m.chunks * CHUNK - begin;
    u32 width = left < piece ? left : piece;
    __syncthreads();
    for (u32 i = threadIdx.x; i < width * ROWS; i += FEW_THREADS) {
        u32 t = i / width, k = i % width;
        bool there = t < rows && begin + k < m.cols;
        float x = there ? a.x[(u64)t * a.x_stride + begin + k] : 0.0f;
        xs[t * piece + staged(k)] = a.norm ? x : taken(a, x);
    }
    __syncthreads();
    if (a.norm) normalise<ROWS>(a, m.cols, xs);
}

// Up to ROWS rows: a half-warp for each output of one matrix, or for the same output of two. A lane has `AHEAD` chunks of
// each matrix under way: the first ones while x is staged, which weights do not wait for.
template <int ROWS, int MATRICES, int AHEAD>
DEVICE void few(const LinearArgs& a, const Part* parts, float* xs, float (*acc)[ROWS]) {
    const u32 piece = FEW_STAGED / ROWS;
    u32 lane = threadIdx.x % LANES;
    u32 n = (blockIdx.x - parts->first_block) * FEW_OUTPUTS + threadIdx.x / LANES;
    u32 row = n < parts->m.rows ? n : parts->m.rows - 1;
    u32 chunks = parts->m.chunks;
    Packed packed[MATRICES][AHEAD];
    UNROLL
    for (int i = 0; i < AHEAD; i++) {
        UNROLL
        for (int m = 0; m < MATRICES; m++)
            if ((u32)i < chunks) packed[m][i] = load(parts[m].m, row, i, lane);
    }
    for (u32 c = 0; c < chunks; c += AHEAD) {
        if (c % (piece / CHUNK) == 0) stage<ROWS>(a, parts->m, c, xs);
        const float* here = xs + c % (piece / CHUNK) * CHUNK;
        UNROLL
        for (int i = 0; i < AHEAD; i++) {
            if (c + i >= chunks) continue;
            UNROLL
            for (int m = 0; m < MATRICES; m++) {
                float w[8];
                unpack(packed[m][i], w);
                if (c + AHEAD + i < chunks) packed[m][i] = load(parts[m].m, row, c + AHEAD + i, lane);
                UNROLL
                for (int t = 0; t < ROWS; t++) {
                    const float4* x = (const float4*)(here + t * piece + i * CHUNK) + lane;
                    float4 low = x[0], high = x[LANES];
                    float s = acc[m][t];
                    s = __fmaf_rn(low.x, w[0], s);
                    s = __fmaf_rn(low.y, w[1], s);
                    s = __fmaf_rn(low.z, w[2], s);
                    s = __fmaf_rn(low.w, w[3], s);
                    s = __fmaf_rn(high.x, w[4], s);
                    s = __fmaf_rn(high.y, w[5], s);
                    s = __fmaf_rn(high.z, w[6], s);
                    s = __fmaf_rn(high.w, w[7], s);
                    acc[m][t] = s;
                }
            }
        }
    }
}

template <int ROWS>
DEVICE void few_rows(const LinearArgs& a, float* xs) {
    const Part* p = a.part;
    if (a.parts > 1 && blockIdx.x >= a.part[1].first_block) p = a.part + 1;
    if (a.parts > 2 && blockIdx.x >= a.part[2].first_block) p = a.part + 2;
    float acc[1][ROWS] = {};
    few<ROWS, 1, ROWS == 16 ? 4 : 8>(a, p, xs, acc);
    u32 n = (blockIdx.x - p->first_block) * FEW_OUTPUTS + threadIdx.x / LANES;
    u32 rows = rows_of(a.step, a.of_selected);
    UNROLL
    for (int t = 0; t < ROWS; t++) {
        float dot = tree(acc[0][t]);
        if (threadIdx.x % LANES == 0 && n < p->m.rows && (u32)t < rows) finish(a, *p, t, n, dot);
    }
}

// The first two matrices are gate and up: out of the first takes silu(gate) * up.
template <int ROWS>
DEVICE void few_gated(const LinearArgs& a, float* xs) {
    float acc[2][ROWS] = {};
    few<ROWS, 2, 4>(a, a.part, xs, acc);
    u32 n = blockIdx.x * FEW_OUTPUTS + threadIdx.x / LANES;
    u32 rows = rows_of(a.step, a.of_selected);
    UNROLL
    for (int t = 0; t < ROWS; t++) {
        float gate = tree(acc[0][t]), up = tree(acc[1][t]);
        if (threadIdx.x % LANES != 0 || n >= a.part[0].m.rows || (u32)t >= rows) continue;
        float silu = silu_of(biased(a.part[0], n, gate));
        a.part[0].out[(u64)t * a.part[0].out_stride + n] = __fmul_rn(silu, biased(a.part[1], n, up));
    }
}

#define FEW(name, rows, call)                          \
    KERNEL(name, LinearArgs, FEW_THREADS) {            \
        __shared__ __align__(16) float xs[FEW_STAGED]; \
        call<rows>(a, xs);                             \
    }

FEW(linear_few_1, 1, few_rows)
FEW(linear_few_4, 4, few_rows)
FEW(linear_few_16, 16, few_rows)
FEW(linear_gated_1, 1, few_gated)
FEW(linear_gated_4, 4, few_gated)

#define MANY_THREADS 256
#define TILE 32
// Rows and outputs that one half-warp keeps sums of.
#define KEPT 8

// Any number of rows: a tile of 32 rows and 32 outputs for each block, 8 by 8 for each half-warp.
KERNEL(linear_many, LinearArgs, MANY_THREADS, 2) {
    __shared__ __align__(16) float xs[TILE * CHUNK];
    __shared__ __align__(16) float ws[TILE * CHUNK];
    const Part& p = a.part[0];
    u32 rows = rows_of(a.step, a.of_selected);
    u32 first_row = blockIdx.y * TILE, first_out = blockIdx.x * TILE;
    if (first_row >= rows) return;
    u32 lane = threadIdx.x % LANES, half = threadIdx.x / LANES;
    // The two half-warps of a warp share their rows of x.
    u32 mine_t = half / 4, mine_n = half % 4;
    float acc[KEPT][KEPT];
    UNROLL
    for (int i = 0; i < KEPT; i++) {
        UNROLL
        for (int j = 0; j < KEPT; j++) acc[i][j] = 0.0f;
    }
    for (u32 c = 0; c < p.m.chunks; c++) {
        __syncthreads();
        UNROLL_BY(4)
        for (u32 i = threadIdx.x; i < TILE * CHUNK; i += MANY_THREADS) {
            u32 t = first_row + i / CHUNK, k = i % CHUNK;
            bool there = t < rows && c * CHUNK + k < p.m.cols;
            xs[i / CHUNK * CHUNK + staged(k)] = there ? taken(a, a.x[(u64)t * a.x_stride + c * CHUNK + k]) : 0.0f;
        }
        // One weight row at a time: the sums leave no registers for more.
        ROLLED
        for (u32 i = half; i < TILE; i += MANY_THREADS / LANES) {
            u32 n = first_out + i < p.m.rows ? first_out + i : p.m.rows - 1;
            float w[8];
            unpack(load(p.m, n, c, lane), w);
            float4* to = (float4*)(ws + i * CHUNK) + lane;
            to[0] = make_float4(w[0], w[1], w[2], w[3]);
            to[LANES] = make_float4(w[4], w[5], w[6], w[7]);
        }
        __syncthreads();
        // Half of a lane's columns and half of its outputs at a time: what is left of the registers holds no more.
        ROLLED
        for (int part = 0; part < 2; part++) {
            UNROLL
            for (int first = 0; first < KEPT; first += KEPT / 2) {
                float4 w[KEPT / 2];
                UNROLL
                for (int j = 0; j < KEPT / 2; j++)
                    w[j] = ((const float4*)(ws + (mine_n + 4 * (first + j)) * CHUNK))[part * LANES + lane];
                UNROLL
                for (int i = 0; i < KEPT; i++) {
                    float4 x = ((const float4*)(xs + (mine_t + 4 * i) * CHUNK))[part * LANES + lane];
                    UNROLL
                    for (int j = 0; j < KEPT / 2; j++) {
                        float s = acc[i][first + j];
                        s = __fmaf_rn(x.x, w[j].x, s);
                        s = __fmaf_rn(x.y, w[j].y, s);
                        s = __fmaf_rn(x.z, w[j].z, s);
                        s = __fmaf_rn(x.w, w[j].w, s);
                        acc[i][first + j] = s;
                    }
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < KEPT; i++) {
        UNROLL
        for (int j = 0; j < KEPT; j++) {
            float dot = tree(acc[i][j]);
            u32 t = first_row + mine_t + 4 * i, n = first_out + mine_n + 4 * j;
            if (lane == 0 && t < rows && n < p.m.rows) finish(a, p, t, n, dot);
        }
    }
}
