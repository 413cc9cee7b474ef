// The rows of x as `gemv.cu` wants them in shared memory: normalised, rounded to BF16, with the sums of their groups.

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

// Where column `j * LANES + lane` of a chunk is staged: a lane's eight columns side by side, lanes in the order in which the
// threads of a quad meet them.
DEVICE u32 place_in_chunk(u32 lane, u32 j) {
    return lane / (4 * RUNS) * (32 * RUNS) + lane % RUNS * 32 + lane % (4 * RUNS) / RUNS * 8 + j;
}

// What is done before the products is done once by every block, and a kernel that has just begun waits for its own
// instructions: few of them matter more than few bytes.

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

// Loads that a warp has under way before the products.
#define UNDER_WAY 3

// 1 / rms of each row of x, by the whole block. A warp takes whole rows where there are several, else a share of the one.
template <int ROWS>
DEVICE void measure(const LinearArgs& a, u32 rows, u32 cols, float* parts, float* inv) {
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    u32 share = ROWS == 1 ? warps : 1, step = share * CHUNK;
    ROLLED
    for (u32 t = warp / share; t < ROWS; t += warps / share) {
        const float* x = a.x + (u64)t * a.x_stride;
        float dot = 0.0f;
        ROLLED
        for (u32 k = warp % share * CHUNK + lane * 4; t < rows && k < cols; k += UNDER_WAY * step) {
            float4 v[UNDER_WAY];
            UNROLL
            for (int i = 0; i < UNDER_WAY; i++) v[i] = four(x, k + i * step, cols);
            UNROLL
            for (int i = 0; i < UNDER_WAY; i++)
                dot = __fmaf_rn(v[i].x, v[i].x, __fmaf_rn(v[i].y, v[i].y, __fmaf_rn(v[i].z, v[i].z, __fmaf_rn(v[i].w, v[i].w, dot))));
        }
        dot = sum_of_half(dot);
        dot += __shfl_xor_sync(FULL, dot, 16, 32);
        if (lane == 0) parts[ROWS == 1 ? warp : t] = dot;
    }
    __syncthreads();
    if (threadIdx.x < ROWS) {
        float dot = parts[threadIdx.x];
        ROLLED
        for (u32 w = 1; ROWS == 1 && w < warps; w++) dot += parts[w];
        inv[threadIdx.x] = inverse_root(__fmaf_rn(dot, __fdiv_rn(1.0f, (float)cols), a.eps));
    }
    __syncthreads();
}

// Stages a chunk of a row, of which a lane brings the four columns 4 lane and after; the sums of its groups go to `sums`.
DEVICE void put_chunk(float4 v, u16* xs, float* sums) {
    u32 lane = threadIdx.x % 32, first = lane % 4 * 4, j = lane / 4;
    u32 low = to_bf16_pair(v.x, v.y), high = to_bf16_pair(v.z, v.w);
    xs[place_in_chunk(first, j)] = (u16)low;
    xs[place_in_chunk(first + 1, j)] = (u16)(low >> 16);
    xs[place_in_chunk(first + 2, j)] = (u16)high;
    xs[place_in_chunk(first + 3, j)] = (u16)(high >> 16);
#if PLAIN == 0
    float sum = as_float(low << 16) + as_float(low & 0xffff0000u) + as_float(high << 16) + as_float(high & 0xffff0000u);
    UNROLL
    for (int half = GROUP / 8; half > 0; half /= 2) sum += __shfl_xor_sync(FULL, sum, half, 32);
    if (lane % (GROUP / 4) == 0) sums[lane / (GROUP / 4)] = sum;
#endif
}

// Stages `n` chunks of all rows from chunk `first` on: a warp takes a chunk of a row.
template <int ROWS>
DEVICE void stage(const LinearArgs& a, u32 rows, u32 cols, u32 first, u32 n, u32 apart, const float* inv, u16* xs,
                  float* sums) {
    u32 warps = blockDim.x / 32, lane = threadIdx.x % 32;
    ROLLED
    for (u32 t = 0; t < ROWS; t++) {
        const float* x = a.x + (u64)t * a.x_stride;
        ROLLED
        for (u32 c = threadIdx.x / 32; c < n; c += UNDER_WAY * warps) {
            float4 v[UNDER_WAY], w[UNDER_WAY];
            UNROLL
            for (int i = 0; i < UNDER_WAY; i++) {
                u32 at = c + i * warps, k = (first + at) * CHUNK + lane * 4;
                v[i] = four(x, t < rows && at < n ? k : cols, cols);
                if (a.norm) w[i] = four(a.norm, at < n ? k : cols, cols);
            }
            UNROLL
            for (int i = 0; i < UNDER_WAY; i++) {
                u32 at = c + i * warps;
                if (at >= n) continue;
                if (a.norm) {
                    float r = inv[t];
                    v[i] = make_float4(__fmul_rn(__fmul_rn(v[i].x, r), w[i].x), __fmul_rn(__fmul_rn(v[i].y, r), w[i].y),
                                       __fmul_rn(__fmul_rn(v[i].z, r), w[i].z), __fmul_rn(__fmul_rn(v[i].w, r), w[i].w));
                }
                put_chunk(v[i], xs + t * apart + at * CHUNK, sums + (t * (STAGED / ROWS / CHUNK) + at) * GROUPS);
            }
        }
    }
}
