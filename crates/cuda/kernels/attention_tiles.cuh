// What attention in tiles of rows shares: the runs of a tile, softmax as tokens come.
//
// A run is rows of a tile that follow each other and read one block table. The tile goes through the tokens of each run,
// and rows of other runs see none of them.

#define LOWEST (-as_float(0x7f800000u))

DEVICE u32 least(u32 a, u32 b) { return a < b ? a : b; }

DEVICE u32 most(u32 a, u32 b) { return a > b ? a : b; }

struct Run {
    u32 end;
    u32 tokens;  // most that a row of it sees
};

// The run that begins at row `begin` of a tile of `rows` rows. Every thread of a warp calls it.
DEVICE Run run_from(u32 begin, u32 rows, const u32* tables, const u32* contexts) {
    u32 lane = threadIdx.x % 32;
    Run run = {rows, 0};
    for (u32 r = begin + lane; r < rows; r += 32)
        if (tables[r] != tables[begin]) run.end = least(run.end, r);
    UNROLL
    for (int d = 16; d > 0; d /= 2) run.end = least(run.end, __shfl_xor_sync(FULL, run.end, d, 32));
    for (u32 r = begin + lane; r < run.end; r += 32) run.tokens = most(run.tokens, contexts[r]);
    UNROLL
    for (int d = 16; d > 0; d /= 2) run.tokens = most(run.tokens, __shfl_xor_sync(FULL, run.tokens, d, 32));
    return run;
}

// The tokens that a tile goes through, KEYS at a time, run after run.
struct Tokens {
    u32 begin;  // first row of the run
    u32 first;  // first token at hand
    Run run;
};

DEVICE Tokens first_tokens(u32 rows, const u32* tables, const u32* contexts) {
    Tokens t = {0, 0, run_from(0, rows, tables, contexts)};
    return t;
}

// On to the next tokens; false after the last. Every run has some.
DEVICE bool next_tokens(Tokens& t, u32 keys, u32 rows, const u32* tables, const u32* contexts) {
    t.first += keys;
    if (t.first < t.run.tokens) return true;
    t.begin = t.run.end;
    if (t.begin >= rows) return false;
    t.first = 0;
    t.run = run_from(t.begin, rows, tables, contexts);
    return true;
}

// Where the keys of token `j` lie; anywhere when there are fewer.
DEVICE const u16* keys_of(const AttentionArgs& a, const Row& row, u32 head, u32 j, u32 tokens) {
    if (j >= tokens) return (const u16*)row.pool;
    u32 place;
    u64 page = page_of(a.step, row, j, &place);
    return (const u16*)row.pool + place_of(a.pool, page, a.layer, 0, head, row.page_tokens, place);
}

// Elements from the keys of a token to its values.
DEVICE u64 to_values(const AttentionArgs& a, const Row& row) {
    return (u64)a.pool.kv_heads * a.pool.head_size * row.page_tokens;
}

// Piece `c` of the queries of a row as BF16: zeros beyond the rows and the head.
DEVICE uint4 query_piece(const AttentionArgs& a, u32 t, u32 h, u32 c) {
    float v[8] = {};
    if (t < a.step->rows && c * 8 < a.pool.head_size) {
        const float4* q = (const float4*)(a.q + (u64)t * a.q_stride + h * a.pool.head_size + c * 8);
        float4 low = q[0], high = q[1];
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    }
    return pack_eight(v);
}

// What a thread keeps of two rows, r and r + 8 of a warp's sixteen: of each eight columns two, as products spread them.
template <int HEAD, int KEYS>
struct Online {
    float o[HEAD / 2];     // sums of values, not yet divided
    float s[KEYS / 2];     // scores of the tokens at hand
    float peak[2];         // largest score so far
    float sum[2];          // this thread's part of the denominator
    float kept[2];         // what the sums so far are worth under the new peak

    MEMBER void begin() {
        UNROLL
        for (int j = 0; j < HEAD / 2; j++) o[j] = 0.0f;
        peak[0] = peak[1] = LOWEST, sum[0] = sum[1] = 0.0f;
    }

    // Scores to weights: rows `mine` and `mine` + 8 of the tile see of the run what their contexts say, or nothing.
    MEMBER void weigh(const Tokens& t, u32 mine, const u32* contexts, float unit) {
        u32 limit[2];
        UNROLL
        for (int half = 0; half < 2; half++) {
            u32 r = mine + 8 * half;
            limit[half] = r >= t.begin && r < t.run.end ? contexts[r] : 0;
        }
        if (t.first + KEYS > least(limit[0], limit[1])) {
            UNROLL
            for (int i = 0; i < KEYS / 2; i++)
                if (t.first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= limit[i % 4 / 2]) s[i] = LOWEST;
        }
        UNROLL
        for (int half = 0; half < 2; half++) {
            float m = peak[half];
            UNROLL
            for (int j = 2 * half; j < KEYS / 2; j += 4) m = fmaxf(m, fmaxf(s[j], s[j + 1]));
            m = fmaxf(m, __shfl_xor_sync(FULL, m, 1, 32));
            m = fmaxf(m, __shfl_xor_sync(FULL, m, 2, 32));
            // A row that has seen nothing yet has no peak to count from.
            float top = m == LOWEST ? 0.0f : m, base = __fmul_rn(top, unit), added = 0.0f;
            // Exactly 1 where the peak stays: tokens that a row may not see change no bit of it.
            kept[half] = power_of_two(__fmul_rn(__fsub_rn(peak[half], top), unit));
            peak[half] = m;
            UNROLL
            for (int j = 2 * half; j < KEYS / 2; j += 4) {
                s[j] = power_of_two(__fmaf_rn(s[j], unit, -base));
                s[j + 1] = power_of_two(__fmaf_rn(s[j + 1], unit, -base));
                added = __fadd_rn(added, __fadd_rn(s[j], s[j + 1]));
            }
            sum[half] = __fmaf_rn(sum[half], kept[half], added);
        }
    }

    // Brings the sums of values to the new peak.
    MEMBER void lower() {
        UNROLL
        for (int j = 0; j < HEAD / 2; j++) o[j] = __fmul_rn(o[j], kept[j % 4 / 2]);
    }

    // The weights as left operands of products, 16 tokens each.
    MEMBER void weights(u32 (*p)[4]) const {
        UNROLL
        for (int i = 0; i < KEYS / 4; i++) p[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }

    // Divides, and stores the rows of the tile that there are.
    MEMBER void finish(const AttentionArgs& a, u32 first_row, u32 mine, u32 rows, u32 h) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            float all = sum[half];
            all = __fadd_rn(all, __shfl_xor_sync(FULL, all, 1, 32));
            all = __fadd_rn(all, __shfl_xor_sync(FULL, all, 2, 32));
            if (mine + 8 * half >= rows) continue;
            float* out = a.out + (u64)(first_row + mine + 8 * half) * a.out_stride + h * a.pool.head_size;
            UNROLL
            for (int j = 0; j < HEAD / 8; j++) {
                u32 e = j * 8 + threadIdx.x % 4 * 2;
                if (e >= a.pool.head_size) continue;
                const float* pair = o + 4 * j + 2 * half;
                *(float2*)(out + e) = make_float2(__fdiv_rn(pair[0], all), __fdiv_rn(pair[1], all));
            }
        }
    }
};
