// Softmax of some heads over the tokens of a part of a context, on tensor cores: a warp takes 16 tokens at a time.

struct SplitArgs {
    HeadsArgs heads;  // also without the work before: q, the pool, the layer
    float* out;
    const u16* groups;  // [groups, 1 + GROUP_HEADS]: the kv head, then query heads, NO_HEAD where there are fewer
    float* parts;
    u32* tickets;  // [rows, groups]
    const Row* row;  // [rows]
    u32 out_stride;
    float scale;
    u32 splits;
    u32 least;  // tokens of a part of the context
};

#define SPLIT_THREADS 384
#define SPLIT_WARPS (SPLIT_THREADS / 32)
#define GROUP_HEADS 4
#define NO_HEAD 0xffffu
// Tokens of a warp at a time.
#define TILE_TOKENS 16
#define MOST_SPLIT_HEAD 128
// From one staged query to the next: rows of a product lie in different banks.
#define QUERY_STRIDE (MOST_SPLIT_HEAD + 32)
// Parts of a context, at most: as many as there are warps.
#define MOST_SPLITS SPLIT_WARPS

// Memory of a block.
struct Meeting {
    float o[GROUP_HEADS][SPLIT_WARPS][MOST_SPLIT_HEAD];
    float most[GROUP_HEADS][SPLIT_WARPS];
    float sum[GROUP_HEADS][SPLIT_WARPS];
    float weight[GROUP_HEADS][MOST_SPLITS];  // of warps, then of parts
    float most_of_all[GROUP_HEADS];
    float sum_of_all[GROUP_HEADS];
    __align__(16) float p[SPLIT_WARPS][GROUP_HEADS][TILE_TOKENS];
    __align__(16) u16 queries[3 * GROUP_HEADS][QUERY_STRIDE];  // the first terms of all heads, the second, the third
    __align__(16) u16 key[MOST_SPLIT_HEAD];
    __align__(16) u16 value[MOST_SPLIT_HEAD];
    u32 ticket;
};

DEVICE float nothing() { return -as_float(0x7f800000u); }

// e^(score - most), and 0 where there is no score.
DEVICE float weight_of(float score, float most) {
    return score == nothing() ? 0.0f : power_of_two(__fmul_rn(__fsub_rn(score, most), 1.44269504088896340736f));
}

// Stages elements `i` and `i + 1` of query `h` as three BF16 numbers each, whose sum they are; i even.
DEVICE void put_query(Meeting* shared, u32 h, u32 i, float x, float y) {
    UNROLL
    for (int term = 0; term < 3; term++) {
        u32 bits = to_bf16_pair(x, y);
        *(u32*)(shared->queries[term * GROUP_HEADS + h] + i) = bits;
        x = __fsub_rn(x, as_float(bits << 16));
        y = __fsub_rn(y, as_float(bits & 0xffff0000u));
    }
}

// Elements of a head: E, or where that is 0 as many as the pool says.
template <int E>
DEVICE u32 elements(const SplitArgs& a) {
    return E > 0 ? E : a.heads.pool.head_size;
}

// What a thread reads of the keys and values of a tile, with g = lane / 4 and t = lane % 4.
struct Tile {
    uint4 keys[2][4];    // tokens g and g + 8: elements 32 l + 8 t and the seven after it
    uint4 values[4][2];  // tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9: elements 8 g and 64 + 8 g and those after them
};

// Token of a tile that a thread reads as value number `i`.
DEVICE u32 value_token(u32 i) { return threadIdx.x % 4 * 2 + i % 2 + i / 2 * 8; }

// Where the keys and values of a row's kv head lie in its pool.
struct Cache {
    const u16* keys;       // of the first page
    u64 values_after;      // elements from a key to the value of its token
    u64 page_elements;     // from a page to the next
};

DEVICE Cache cache_of(const SplitArgs& a, const Row& row, u32 kv_head) {
    const Pool& p = a.heads.pool;
    Cache c;
    c.keys = (const u16*)row.pool + place_of(p, 0, a.heads.layer, 0, kv_head, row.page_tokens, 0);
    c.values_after = (u64)p.kv_heads * row.page_tokens * p.head_size;
    c.page_elements = 2 * p.layers * c.values_after;
    return c;
}

// Reads the tile that begins at token `first`, of which those before `end` are there; not the token `skip`.
template <int E>
DEVICE void read_tile(const SplitArgs& a, const Row& row, const Cache& cache, u32 first, u32 end, u32 skip, Tile* tile) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, e = elements<E>(a);
    // A lane looks up one token and tells the others where it lies; 0 stands for no token.
    u32 own = first + threadIdx.x % TILE_TOKENS, place = 0;
    bool there = own < end && own != skip;
    u64 page = there ? page_of(a.heads.step, row, own, &place) : 0;
    u64 offset = there ? 1 + (page * cache.page_elements + place * e) / 8 : 0;
    u64 at[6];
    UNROLL
    for (int i = 0; i < 6; i++) {
        u32 lane = i < 2 ? g + 8 * i : value_token(i - 2);
        u32 low = __shfl_sync(FULL, (u32)offset, lane, 32), high = __shfl_sync(FULL, (u32)(offset >> 32), lane, 32);
        at[i] = (u64)high << 32 | low;
    }
    // Places are counted from 1.
    const uint4* keys = (const uint4*)cache.keys - 1;
    const uint4* values = keys + cache.values_after / 8;
    uint4 zeros = {0, 0, 0, 0};
    UNROLL
    for (int i = 0; i < 2; i++) {
        UNROLL
        for (int l = 0; l < 4; l++)
            tile->keys[i][l] = at[i] && 32 * l + 8 * t < e ? keys[at[i] + 4 * l + t] : zeros;
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        UNROLL
        for (int b = 0; b < 2; b++)
            tile->values[i][b] = at[2 + i] && 64 * b + 8 * g < e ? values[at[2 + i] + 8 * b + g] : zeros;
    }
}

// Puts the token that this step stores into a tile, when it is one of it.
template <int E>
DEVICE void put_fresh(const SplitArgs& a, const Meeting* shared, u32 first, u32 slot, Tile* tile) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, e = elements<E>(a);
    UNROLL
    for (int i = 0; i < 2; i++) {
        if (first + g + 8 * i != slot) continue;
        UNROLL
        for (int l = 0; l < 4; l++)
            if (32 * l + 8 * t < e) tile->keys[i][l] = *(const uint4*)(shared->key + 32 * l + 8 * t);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (first + value_token(i) != slot) continue;
        UNROLL
        for (int b = 0; b < 2; b++)
            if (64 * b + 8 * g < e) tile->values[i][b] = *(const uint4*)(shared->value + 64 * b + 8 * g);
    }
}

// Softmax over the tokens that a warp has seen, for heads 2 (t % 2) and the one after it: the largest score, a thread's
// share of the sum of exponentials, and values: o[d] is elements 8 g + d and 64 + 8 g + d by these heads, in two terms
// that threads t and t + 2 hold.
struct Seen {
    float most[2];
    float sum[2];
    float o[8][4];
};

// Halves `odd` of two words, the first below the second.
DEVICE u32 halves(u32 first, u32 second, int odd) {
    return odd ? (first >> 16) | (second & 0xffff0000u) : (first & 0xffffu) | (second << 16);
}

// Adds the tokens of a tile that lie before `end`.
template <int E>
DEVICE void attend(const SplitArgs& a, Meeting* shared, u32 first, u32 end, const Tile& tile, Seen* seen) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32, e = elements<E>(a);
    // Two chains of products each, so that one need not wait for the other.
    float s[4] = {}, third[4] = {}, other[4] = {}, other_third[4] = {};
    UNROLL
    for (int l = 0; l < 4; l++) {
        if ((u32)l * 32 >= e) continue;
        uint4 b = *(const uint4*)(shared->queries[g] + 32 * l + 8 * t), c = {0, 0, 0, 0};
        if (g < GROUP_HEADS) c = *(const uint4*)(shared->queries[2 * GROUP_HEADS + g] + 32 * l + 8 * t);
        const uint4 &k = tile.keys[0][l], &m = tile.keys[1][l];
        u32 k_low[4] = {k.x, m.x, k.y, m.y}, k_high[4] = {k.z, m.z, k.w, m.w};
        u32 b_low[2] = {b.x, b.y}, b_high[2] = {b.z, b.w}, c_low[2] = {c.x, c.y}, c_high[2] = {c.z, c.w};
        multiply(s, k_low, b_low);
        multiply(third, k_low, c_low);
        multiply(other, k_high, b_high);
        multiply(other_third, k_high, c_high);
    }
    // s[2 i + h]: token g + 8 i, head 2 (t % 2) + h.
    UNROLL
    for (int i = 0; i < 4; i++) {
        s[i] += other[i] + (third[i] + other_third[i]);
        s[i] += __shfl_xor_sync(FULL, s[i], 2, 32);
        s[i] = first + g + i / 2 * 8 < end ? __fmul_rn(s[i], a.scale) : nothing();
    }
    float old[2];
    UNROLL
    for (int h = 0; h < 2; h++) {
        float most = s[h] > s[2 + h] ? s[h] : s[2 + h];
        UNROLL
        for (int half = 16; half >= 4; half /= 2) {
            float other = __shfl_xor_sync(FULL, most, half, 32);
            most = other > most ? other : most;
        }
        most = seen->most[h] > most ? seen->most[h] : most;
        old[h] = weight_of(seen->most[h], most);
        seen->most[h] = most;
        float low = weight_of(s[h], most), high = weight_of(s[2 + h], most);
        seen->sum[h] = __fmaf_rn(seen->sum[h], old[h], low + high);
        if (t < 2) {
            shared->p[warp][2 * t + h][g] = low;
            shared->p[warp][2 * t + h][g + 8] = high;
        }
    }
    __syncwarp();
    // Column g of the second product is head g % 4: the first term of its weights, or the second.
    u32 p[2];
    UNROLL
    for (int i = 0; i < 2; i++) {
        const float* from = shared->p[warp][g % GROUP_HEADS] + 2 * t + 8 * i;
        float low = from[0], high = from[1];
        if (g >= GROUP_HEADS) low = __fsub_rn(low, round_bf16(low)), high = __fsub_rn(high, round_bf16(high));
        p[i] = to_bf16_pair(low, high);
    }
    __syncwarp();
    UNROLL
    for (int d = 0; d < 8; d++) {
        UNROLL
        for (int i = 0; i < 4; i++) seen->o[d][i] = __fmul_rn(seen->o[d][i], old[i % 2]);
        u32 v[4];
        UNROLL
        for (int i = 0; i < 4; i++) {
            u32 low = word_of(tile.values[i / 2 * 2][i % 2], d / 2), high = word_of(tile.values[i / 2 * 2 + 1][i % 2], d / 2);
            v[i] = halves(low, high, d % 2);
        }
        multiply(seen->o[d], v, p);
    }
}

// Brings what a warp has seen to shared memory.
DEVICE void meet(Meeting* shared, Seen* seen) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32, pair = t % 2 * 2;
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int half = 16; half >= 4; half /= 2) seen->sum[h] += __shfl_xor_sync(FULL, seen->sum[h], half, 32);
        if (g == 0 && t < 2) {
            shared->most[pair + h][warp] = seen->most[h];
            shared->sum[pair + h][warp] = seen->sum[h];
        }
    }
    // Threads t and t + 2 hold two terms of the same: one takes the lower elements, the other the upper ones.
    bool upper = t >= 2;
    UNROLL
    for (int h = 0; h < 2; h++) {
        float o[8];
        UNROLL
        for (int d = 0; d < 8; d++) {
            float low = seen->o[d][h], high = seen->o[d][2 + h];
            o[d] = (upper ? high : low) + __shfl_xor_sync(FULL, upper ? low : high, 2, 32);
        }
        float4* to = (float4*)(shared->o[pair + h][warp] + (upper ? 64 : 0) + 8 * g);
        to[0] = make_float4(o[0], o[1], o[2], o[3]);
        to[1] = make_float4(o[4], o[5], o[6], o[7]);
    }
}
