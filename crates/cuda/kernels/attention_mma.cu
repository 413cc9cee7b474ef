// Softmax attention for tiles of rows on tensor cores, one block for 64 rows and a query head.
//
// math: s_j = dot(q, k_j) * scale, out = sum_j e^(s_j - m) v_j / sum_j e^(s_j - m), m the largest score so far: when it
//   grows, the sums are brought to the new one
// shapes: q, out [T, H * E]; keys and values [context, E] of one kv head
// layout: pools as in kv.cuh, pages in any order
// precision: q and the weights of the tokens rounded to BF16, F32 sums, exponentials to about 22 bits
// preconditions: E a multiple of 16, at most 256; pools of BF16; context at least 1 and inside the table
// cost: keys and values of the context once for 64 rows of a head
// tolerance: order of its own; an answer depends on the row alone, not on its neighbours
// wins: no scores in memory; any device with BF16 tensor cores
// loses: rows of many sequences, whose tokens the tile goes through one sequence after the other; a value that is no
//   number spoils the rows of its tile that may not see it
// fallback: attention.cu
// evidence: none yet
// source: Dao et al., FlashAttention (2022), for softmax as tokens come

#define MMA_THREADS 128
#define MMA_ROWS 64
#define MMA_KEYS 64

// Bytes before piece `c` of row `r` in rows of HEAD elements.
template <int HEAD>
DEVICE u32 head_piece(u32 r, u32 c) {
    return r * HEAD * 2 + (c / 8 * 8 + (c ^ r) % 8) * PIECE;
}

template <int HEAD>
struct MmaShared {
    u8 q[MMA_ROWS * HEAD * 2];
    u8 k[2][MMA_KEYS * HEAD * 2];
    u8 v[2][MMA_KEYS * HEAD * 2];
    const u16* at[2][MMA_KEYS];
    u32 tables[MMA_ROWS];
    u32 contexts[MMA_ROWS];
};

// Begins to copy what lies `offset` elements after the keys of `tokens` tokens, and zeros for those missing to 64.
template <int HEAD>
DEVICE void copy_tokens(const AttentionArgs& a, const u16* const* at, u32 tokens, u64 offset, u8* to) {
    u32 c = threadIdx.x % (HEAD / 8), first = threadIdx.x / (HEAD / 8);
    tokens = c * 8 < a.pool.head_size ? tokens : 0;
    offset += c * 8;
    UNROLL
    for (u32 n = 0; n < HEAD / 16; n++) {
        u32 r = first + n * (1024 / HEAD);
        copy_piece(to + head_piece<HEAD>(r, c), at[r] + offset, r < tokens);
    }
}

template <int HEAD>
DEVICE void scores_of(const MmaShared<HEAD>& s, u32 stage, float* scores) {
    u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    UNROLL
    for (int i = 0; i < MMA_KEYS / 2; i++) scores[i] = 0.0f;
    UNROLL
    for (u32 k = 0; k < HEAD / 16; k++) {
        u32 q[4];
        load_matrices(q, s.q + head_piece<HEAD>(warp_row + lane % 16, 2 * k + lane / 16));
        UNROLL
        for (int j = 0; j < MMA_KEYS / 16; j++) {
            u32 key[4], r = j * 16 + lane / 16 * 8 + lane % 8;
            load_matrices(key, s.k[stage] + head_piece<HEAD>(r, 2 * k + lane / 8 % 2));
            multiply(scores + 8 * j, q, key);
            multiply(scores + 8 * j + 4, q, key + 2);
        }
    }
}

template <int HEAD>
DEVICE void add_values(const MmaShared<HEAD>& s, u32 stage, Online<HEAD, MMA_KEYS>& online) {
    u32 lane = threadIdx.x % 32;
    u32 p[MMA_KEYS / 16][4];
    online.weights(p);
    UNROLL
    for (int k = 0; k < MMA_KEYS / 16; k++) {
        UNROLL
        for (int j = 0; j < HEAD / 16; j++) {
            u32 value[4], r = k * 16 + lane % 16;
            load_transposed(value, s.v[stage] + head_piece<HEAD>(r, 2 * j + lane / 16));
            multiply(online.o + 8 * j, p[k], value);
            multiply(online.o + 8 * j + 4, p[k], value + 2);
        }
    }
}

// Goes through the tokens of the tile, 64 at a time; those of a run that come next are copied meanwhile.
template <int HEAD>
DEVICE void attend(const AttentionArgs& a, MmaShared<HEAD>& s, Tokens& t, u32 first_row, u32 mine,
                   Online<HEAD, MMA_KEYS>& online) {
    const Row row = a.step->row[first_row + t.begin];
    u32 head = a.kv_of_head[blockIdx.x], tokens = t.run.tokens;
    u64 values = to_values(a, row);
    auto place = [&](u32 first, u32 stage) {
        if (threadIdx.x < MMA_KEYS) s.at[stage][threadIdx.x] = keys_of(a, row, head, first + threadIdx.x, tokens);
    };
    float unit = __fmul_rn(a.scale, LOG2_E);
    // Threads may still read what the run before left.
    __syncthreads();
    place(0, 0);
    __syncthreads();
    copy_tokens<HEAD>(a, s.at[0], tokens, 0, s.k[0]);
    end_group();
    copy_tokens<HEAD>(a, s.at[0], tokens, values, s.v[0]);
    end_group();
    for (; t.first < tokens; t.first += MMA_KEYS) {
        u32 now = t.first / MMA_KEYS % 2, next = 1 - now;
        bool more = t.first + MMA_KEYS < tokens;
        u32 left = tokens - t.first - MMA_KEYS;
        place(t.first + MMA_KEYS, next);
        wait_groups<1>();
        __syncthreads();
        if (more) copy_tokens<HEAD>(a, s.at[next], left, 0, s.k[next]);
        end_group();
        scores_of<HEAD>(s, now, online.s);
        online.weigh(t, mine, s.contexts, unit);
        online.lower();
        wait_groups<1>();
        __syncthreads();
        if (more) copy_tokens<HEAD>(a, s.at[next], left, values, s.v[next]);
        end_group();
        add_values<HEAD>(s, now, online);
    }
}

// Four warps of 16 rows each.
template <int HEAD>
DEVICE void attention_mma(const AttentionArgs& a, u8* shared) {
    await_previous();
    MmaShared<HEAD>& s = *(MmaShared<HEAD>*)shared;
    // Late rows see most: they begin first.
    u32 h = blockIdx.x, first_row = (gridDim.y - 1 - blockIdx.y) * MMA_ROWS;
    if (first_row >= a.step->rows) return;
    u32 rows = least(a.step->rows - first_row, MMA_ROWS);
    for (u32 i = threadIdx.x; i < MMA_ROWS * HEAD / 8; i += MMA_THREADS) {
        u32 r = i / (HEAD / 8), c = i % (HEAD / 8);
        *(uint4*)(s.q + head_piece<HEAD>(r, c)) = query_piece(a, first_row + r, h, c);
    }
    for (u32 r = threadIdx.x; r < rows; r += MMA_THREADS) {
        s.tables[r] = a.step->row[first_row + r].first_page;
        s.contexts[r] = a.step->row[first_row + r].context;
    }
    __syncthreads();
    u32 mine = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    Online<HEAD, MMA_KEYS> online;
    online.begin();
    for (Tokens t = {}; t.begin < rows; t.begin = t.run.end) {
        t.first = 0;
        t.run = run_from(t.begin, rows, s.tables, s.contexts);
        attend<HEAD>(a, s, t, first_row, mine, online);
    }
    online.finish(a, first_row, mine, rows, h);
}

#define ATTENTION(name, head, blocks)                     \
    KERNEL(name, AttentionArgs, MMA_THREADS, blocks) {    \
        SHARED_BYTES(shared);                             \
        attention_mma<head>(a, shared);                   \
    }

ATTENTION(attention_mma_64, 64, 3)
ATTENTION(attention_mma_128, 128, 2)
ATTENTION(attention_mma_256, 256, 1)
