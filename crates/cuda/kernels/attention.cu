// Softmax attention over the cached tokens of a row's block table, one block for each row and query head.
//
// math: s_j = dot(q, k_j) * scale, m = max s, p_j = e^(s_j - m), out = sum_j p_j v_j / sum_j p_j
// shapes: q, out [T, H * E]; keys and values [context, E] of one kv head
// layout: pools as in kv.cuh, pages in any order; scores [rows, heads, stride] in device memory
// precision: F32 sums over F32 or BF16 pools; scores in 16 lanes over E, the denominator in 16 lanes over tokens, each
//   element of out one chain over tokens in order
// preconditions: E at most 256; context at least 1 and inside the table
// cost: keys and values of the context once for each query head
// tolerance: bit-identical to the reference, whatever the pages
// wins: a thread holds all 16 sums of a token's score, so that scores need no shuffles
// loses: the chain over tokens cannot be split, so that a long context waits for it; heads that share a kv head and rows
//   of one prompt read the same keys and values again
// fallback: none: it takes every shape with heads of at most 256 elements
// evidence: in whole requests on an H200: 20261129T234538Z-7f4112c6219a6842, 20261129T234532Z-7d2ceaf39e4f6114
// source: none

#define ATTENTION_THREADS 256
#define MOST_HEAD 256
// Bytes of values that are staged at once.
#define STAGED_BYTES 32768
// Tokens that are staged at once, at most.
#define STAGED_TOKENS 256

DEVICE float value_of(u16 bits) { return from_bf16(bits); }

DEVICE float value_of(float x) { return x; }

// Elements 16 i to 16 i + 15 of a head; those beyond its end are not read.
DEVICE void read_sixteen(const Pool& p, u64 base, u64 at, u32 i, float* k) {
    u32 first = i * LANES;
    if (p.head_size % LANES == 0) {
        if (p.bf16) {
            const uint4* from = (const uint4*)((const u16*)base + at + first);
            uint4 a = from[0], b = from[1];
            u32 pair[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            UNROLL
            for (int l = 0; l < 8; l++) {
                k[2 * l] = as_float(pair[l] << 16);
                k[2 * l + 1] = as_float(pair[l] & 0xffff0000u);
            }
        } else {
            const float4* from = (const float4*)((const float*)base + at + first);
            UNROLL
            for (int l = 0; l < 4; l++) {
                float4 v = from[l];
                k[4 * l] = v.x, k[4 * l + 1] = v.y, k[4 * l + 2] = v.z, k[4 * l + 3] = v.w;
            }
        }
        return;
    }
    UNROLL
    for (int l = 0; l < LANES; l++) {
        k[l] = 0.0f;
        if (first + l < p.head_size)
            k[l] = p.bf16 ? from_bf16(((const u16*)base)[at + first + l]) : ((const float*)base)[at + first + l];
    }
}

DEVICE float score(const AttentionArgs& a, const float* q, u64 base, u64 at) {
    float acc[LANES];
    UNROLL
    for (int l = 0; l < LANES; l++) acc[l] = 0.0f;
    u32 e = a.pool.head_size;
    for (u32 i = 0; i * LANES < e; i++) {
        float k[LANES];
        read_sixteen(a.pool, base, at, i, k);
        UNROLL
        for (int l = 0; l < LANES; l++)
            if (i * LANES + l < e) acc[l] = __fmaf_rn(q[i * LANES + l], k[l], acc[l]);
    }
    UNROLL
    for (int half = LANES / 2; half > 0; half /= 2) {
        UNROLL
        for (int l = 0; l < LANES / 2; l++)
            if (l < half) acc[l] = __fadd_rn(acc[l], acc[l + half]);
    }
    return __fmul_rn(acc[0], a.scale);
}

// The largest of what the threads of the block hold.
DEVICE float largest(float m, float* parts) {
    UNROLL
    for (int half = 16; half > 0; half /= 2) {
        float other = __shfl_xor_sync(FULL, m, half, 32);
        m = other > m ? other : m;
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = m;
    __syncthreads();
    for (int i = 0; i < ATTENTION_THREADS / 32; i++) m = parts[i] > m ? parts[i] : m;
    return m;
}

// The sum of `n` numbers in 16 lanes and a tree; the threads of one warp call it, and its lane 0 gets the sum.
DEVICE float sum_in_lanes(const float* p, u32 n) {
    float acc = 0.0f;
    u32 lane = threadIdx.x % LANES;
    for (u32 j = lane; j < n; j += LANES) acc = __fadd_rn(acc, p[j]);
    return tree(acc);
}

// Adds the values of `n` staged tokens under their weights to one element of the answer, token by token.
template <typename T>
DEVICE float mix(const float* p, const T* v, u32 e, u32 n, float o) {
    UNROLL_BY(16)
    for (u32 j = 0; j < n; j++) o = __fmaf_rn(p[j], value_of(v[j * e]), o);
    return o;
}

// Copies the values of tokens `first` to `first + n` to shared memory, as they are. [n, E]
DEVICE void stage(const AttentionArgs& a, const Row& row, u32 head, u32 first, u32 n, u8* staged) {
    u32 bytes = a.pool.head_size * (a.pool.bf16 ? 2 : 4);
    u32 part = bytes % 16 == 0 ? 16 : 2;
    u32 parts = bytes / part;
    for (u32 i = threadIdx.x; i < n * parts; i += ATTENTION_THREADS) {
        u32 token = i / parts, offset = i % parts * part, place;
        u64 page = page_of(a.step, row, first + token, &place);
        u64 at = place_of(a.pool, page, a.layer, 1, head, row.page_tokens, place);
        const u8* from = (const u8*)row.pool + at * (a.pool.bf16 ? 2 : 4) + offset;
        u8* to = staged + token * bytes + offset;
        if (part == 16) *(uint4*)to = *(const uint4*)from;
        else *(u16*)to = *(const u16*)from;
    }
}

KERNEL(attention, AttentionArgs, ATTENTION_THREADS) {
    __shared__ __align__(16) u8 staged[STAGED_BYTES];
    __shared__ float q[MOST_HEAD];
    __shared__ float p[STAGED_TOKENS];
    __shared__ float parts[ATTENTION_THREADS / 32];
    __shared__ float denominator;
    u32 h = blockIdx.x, t = blockIdx.y;
    if (t >= a.step->rows) return;
    const Row row = a.step->row[t];
    u32 e = a.pool.head_size, head = a.kv_of_head[h];
    float* scores = a.step->scores + ((u64)t * a.heads + h) * a.step->score_stride;
    for (u32 i = threadIdx.x; i < e; i += ATTENTION_THREADS) q[i] = a.q[(u64)t * a.q_stride + h * e + i];
    __syncthreads();

    float m = -as_float(0x7f800000u);
    for (u32 j = threadIdx.x; j < row.context; j += ATTENTION_THREADS) {
        u32 place;
        u64 page = page_of(a.step, row, j, &place);
        float s = score(a, q, row.pool, place_of(a.pool, page, a.layer, 0, head, row.page_tokens, place));
        scores[j] = s;
        m = s > m ? s : m;
    }
    m = largest(m, parts);
    for (u32 j = threadIdx.x; j < row.context; j += ATTENTION_THREADS) scores[j] = exponential(__fsub_rn(scores[j], m));
    __syncthreads();

    u32 tokens = STAGED_BYTES / (e * (a.pool.bf16 ? 2 : 4));
    tokens = tokens < STAGED_TOKENS ? tokens : STAGED_TOKENS;
    float o = 0.0f;
    for (u32 first = 0; first < row.context; first += tokens) {
        u32 n = row.context - first < tokens ? row.context - first : tokens;
        __syncthreads();
        stage(a, row, head, first, n, staged);
        for (u32 j = threadIdx.x; j < n; j += ATTENTION_THREADS) p[j] = scores[first + j];
        __syncthreads();
        // The last warp, which has the fewest values to mix, sums the denominator meanwhile.
        if (first == 0 && threadIdx.x / 32 == ATTENTION_THREADS / 32 - 1) {
            float sum = sum_in_lanes(scores, row.context);
            if (threadIdx.x % 32 == 0) denominator = sum;
        }
        if (threadIdx.x < e) {
            if (a.pool.bf16) o = mix(p, (const u16*)staged + threadIdx.x, e, n, o);
            else o = mix(p, (const float*)staged + threadIdx.x, e, n, o);
        }
    }
    __syncthreads();
    if (threadIdx.x < e) a.out[(u64)t * a.out_stride + h * e + threadIdx.x] = __fdiv_rn(o, denominator);
}
