// The rows of x as `gemv.cu` wants them in shared memory: normalised, rounded to BF16, with the sums of their groups. A warp
// stages what it multiplies itself, so that it waits for no other warp.

#define GEMV_THREADS 160
#define MOST_WARPS (GEMV_THREADS / 32)
// Columns of x that are staged at once, all rows together.
#define STAGED 16384
// Between staged rows, so that the rows of a product lie in different banks.
#define APART 32
// Lanes of a row's chunk that a thread reads at once, eight columns each; such reads of a chunk.
#define RUNS (16 / QUANT_BITS)
#define LOADS (4 / RUNS)

#if PLAIN == 0
#define GROUPS (CHUNK / GROUP)
#else
#define GROUPS 1
#endif
// Chunks whose scales a quad reads at once, a thread one of them.
#define LENT (4 / GROUPS)

// What is done before the products is done once by every block, and all that the launch before gives is waited for here:
// every load of it is begun before anything looks at one.

// Four columns of a row from `k` on; what lies beyond its end is zero. Rows are padded to a multiple of 32.
DEVICE float4 four(const float* x, u32 k, u32 cols) {
    float4 v = k < cols ? *(const float4*)(x + k) : make_float4(0, 0, 0, 0);
    if (k + 4 > cols) {
        v.y = k + 1 < cols ? v.y : 0.0f;
        v.z = k + 2 < cols ? v.z : 0.0f;
        v.w = k + 3 < cols ? v.w : 0.0f;
    }
    return v;
}

// Eight lanes take a chunk of a row. Lane 4 h + q of them has columns 64 h + 16 i + 4 q + c, i and c from 0 to 3: of four
// lanes of a half-warp, those that one thread multiplies, every other four columns.
#define OCTETS 4

// The first column that this thread has of a chunk.
DEVICE u32 own_column() { return threadIdx.x / 4 % 2 * 64 + threadIdx.x % 4 * 4; }

// The columns that this thread has of chunk `chunk` of a row, or zeros.
DEVICE void own_columns(const float* x, u32 chunk, bool there, u32 cols, float4* v) {
    u32 k = there ? chunk * CHUNK + own_column() : cols;
    if (there && (chunk + 1) * CHUNK <= cols) {
        UNROLL
        for (int i = 0; i < 4; i++) v[i] = *(const float4*)(x + k + 16 * i);
        return;
    }
    UNROLL
    for (int i = 0; i < 4; i++) v[i] = four(x, k + 16 * i, cols);
}

// What a thread has of its first chunk of a row before `stage` begins: of the norm's weight, which is there before x is, and of
// x as `measure` read it. Elements that are under way leave no registers for it.
#define HAS_EARLY (PLAIN == 0)
struct Early {
    float4 norm[4];
    float4 x[4];
};

// Loads what `stage` wants first of the norm's weight, and brings the rest near.
DEVICE void expect_norm(const float* norm, u32 begin, u32 end, u32 cols, Early& early) {
    u32 octet = threadIdx.x % 32 / 8, last = end * CHUNK < cols ? end * CHUNK : cols;
    if (HAS_EARLY) own_columns(norm, begin + octet, begin + octet < end, cols, early.norm);
    ROLLED
    for (u32 k = (begin + (HAS_EARLY ? OCTETS : 0)) * CHUNK + threadIdx.x % 32 * 8; k < last; k += 256) touch(norm + k);
}

// Brings near what a warp stages of the one row in more than one go, so that it waits for the row once: chunks `begin` to `end`
// and in halves those `half` chunks further.
DEVICE void expect_row(const float* x, u32 begin, u32 end, u32 half, u32 cols) {
    if (half == 0 && end <= begin + OCTETS) return;
    u32 last = end * CHUNK < cols ? end * CHUNK : cols;
    ROLLED
    for (u32 k = begin * CHUNK + threadIdx.x % 32 * 8; k < last; k += 256) {
        touch(x + k);
        if (half > 0 && k + half * CHUNK < cols) touch(x + k + half * CHUNK);
    }
}

DEVICE void add_squares(float4 v, float4* sum) {
    sum->x = __fmaf_rn(v.x, v.x, sum->x);
    sum->y = __fmaf_rn(v.y, v.y, sum->y);
    sum->z = __fmaf_rn(v.z, v.z, sum->z);
    sum->w = __fmaf_rn(v.w, v.w, sum->w);
}

// Sums of squares, by the whole block: of one row in as many parts as there are warps, each of the chunks that it stages where
// all are staged at once; of several rows one each. squares [MOST_WARPS] or [ROWS]
template <int ROWS>
DEVICE void measure(const LinearArgs& a, u32 rows, u32 cols, float* squares, Early& early) {
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32, chunks = a.part[0].m.chunks;
    u32 share = ROWS == 1 ? (chunks + warps - 1) / warps : chunks;
    ROLLED
    for (u32 t = ROWS == 1 ? 0 : warp; t < ROWS; t += ROWS == 1 ? 1 : warps) {
        const float* x = a.x + (u64)t * a.x_stride;
        u32 first = ROWS == 1 ? warp * share : 0, last = first + share < chunks ? first + share : chunks;
        last = t < rows ? last : 0;
        float4 sum = make_float4(0, 0, 0, 0);
        ROLLED
        for (u32 c = first + lane / 8; c - lane / 8 < last; c += OCTETS) {
            float4 v[4];
            own_columns(x, c, c < last, cols, v);
            UNROLL
            for (int i = 0; i < 4; i++) {
                if (ROWS == 1 && c == first + lane / 8) early.x[i] = v[i];
                add_squares(v[i], &sum);
            }
        }
        float dot = sum_of_half(sum.x + sum.y + (sum.z + sum.w));
        dot += __shfl_xor_sync(FULL, dot, 16, 32);
        if (lane == 0) squares[ROWS == 1 ? warp : t] = dot;
    }
    __syncthreads();
}

// 1 / rms of a row that was measured.
template <int ROWS>
DEVICE float inverse_of(const LinearArgs& a, u32 t, const float* squares) {
    float dot = squares[ROWS == 1 ? 0 : t];
    UNROLL
    for (u32 w = 1; w < (ROWS == 1 ? MOST_WARPS : 1); w++) dot += w < blockDim.x / 32 ? squares[w] : 0.0f;
    return inverse_root(__fmaf_rn(dot, a.share, a.eps));
}

DEVICE float4 times(float4 v, float r, float4 w) {
    return make_float4(__fmul_rn(__fmul_rn(v.x, r), w.x), __fmul_rn(__fmul_rn(v.y, r), w.y), __fmul_rn(__fmul_rn(v.z, r), w.z),
                       __fmul_rn(__fmul_rn(v.w, r), w.w));
}

// The two BF16 numbers of a word, added.
DEVICE float sum_of_pair(u32 both) { return as_float(both << 16) + as_float(both & 0xffff0000u); }

// Stages what the threads of an octet have of a chunk; the sums of its groups go to `sums`. Every thread of the warp calls it.
//
// A thread of `products` reads 16 bytes at once. Of plain elements they are a lane's eight columns. Of quants they are the
// right operands of two products: of two lanes that follow each other two pairs of columns.
DEVICE void put_chunk(const float4* v, bool there, u16* xs, float* sums) {
    u32 q = threadIdx.x % 4, h = threadIdx.x / 4 % 2;
    // word[c][i]: of column c of four those with 16 * 2 i and 16 * (2 i + 1).
    u32 word[4][2] = {{to_bf16_pair(v[0].x, v[1].x), to_bf16_pair(v[2].x, v[3].x)},
                      {to_bf16_pair(v[0].y, v[1].y), to_bf16_pair(v[2].y, v[3].y)},
                      {to_bf16_pair(v[0].z, v[1].z), to_bf16_pair(v[2].z, v[3].z)},
                      {to_bf16_pair(v[0].w, v[1].w), to_bf16_pair(v[2].w, v[3].w)}};
#if PLAIN > 0
    UNROLL
    for (int c = 0; c < 4; c++) {
        uint2 own = {word[c][0], word[c][1]};
        if (there) ((uint2*)xs)[(q * 4 + c) * 2 + h] = own;
    }
#else
    UNROLL
    for (int c = 0; c < 4; c += 2) {
        uint4 own = {word[c][0], word[c + 1][0], word[c][1], word[c + 1][1]};
        u32 place = RUNS == 4 ? (c + h) * 4 + q : (q / 2 * 2 + h) * 4 + q % 2 * 2 + c / 2;
        if (there) ((uint4*)xs)[place] = own;
    }
    // Groups of 32 part a thread's columns in two.
    const int parts = GROUP == 32 ? 2 : 1;
    float part[2] = {};
    UNROLL
    for (int i = 0; i < 8; i++) part[i % 2 % parts] += sum_of_pair(word[i / 2][i % 2]);
    UNROLL
    for (int k = 0; k < parts; k++) {
        UNROLL
        for (int d = 1; d <= (GROUP == 128 ? 4 : 2); d *= 2) part[k] += __shfl_xor_sync(FULL, part[k], d, 32);
        if (there && q == 0 && (GROUP < 128 || h == 0)) sums[GROUP == 128 ? 0 : h * parts + k] = part[k];
    }
#endif
}

// Stages chunks `begin` to `end`, counted from chunk `first` of the rows, of all rows, by a warp; of one row in halves also
// those `half` chunks further.
template <int ROWS>
DEVICE void stage(const LinearArgs& a, u32 rows, u32 cols, u32 first, u32 begin, u32 end, u32 half, u32 apart,
                  const float* squares, bool measured, const Early& early, u16* xs, float* sums) {
    u32 each = begin < end ? end - begin : 0, all = half > 0 ? 2 * each : ROWS * each, octet = threadIdx.x % 32 / 8;
    float r = ROWS == 1 && a.norm ? inverse_of<ROWS>(a, 0, squares) : 1.0f;
    ROLLED
    for (u32 n = octet; n - octet < all; n += OCTETS) {
        u32 t = ROWS == 1 ? 0 : n / each, c = begin + n - t * each;
        if (ROWS == 1 && n >= each) c += half - each;
        float4 v[4];
        if (measured && n == octet) {
            UNROLL
            for (int i = 0; i < 4; i++) v[i] = times(early.x[i], r, early.norm[i]);
            put_chunk(v, n < all, xs + c * CHUNK, sums + c * GROUPS);
            continue;
        }
        own_columns(a.x + (u64)t * a.x_stride, first + c, n < all && t < rows, cols, v);
        if (a.norm) {
            float4 w[4];
            own_columns(a.norm, first + c, n < all, cols, w);
            if (ROWS > 1) r = inverse_of<ROWS>(a, n < all ? t : 0, squares);
            UNROLL
            for (int i = 0; i < 4; i++) v[i] = times(v[i], r, w[i]);
        }
        put_chunk(v, n < all, xs + t * apart + c * CHUNK, sums + (t * (STAGED / ROWS / CHUNK) + c) * GROUPS);
    }
}
