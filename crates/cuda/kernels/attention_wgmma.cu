// Softmax attention for tiles of rows on Hopper's tensor cores, one block for 128 rows and a query head.
//
// math: as attention_mma.cu
// shapes: q, out [T, H * E]; keys and values [context, E] of one kv head
// layout: pools as in kv.cuh, pages in any order; in shared memory panels of 64 elements
// precision: as attention_mma.cu
// preconditions: E a multiple of 16, at most 128; pools of BF16; context at least 1 and inside the table
// cost: keys and values of the context once for 128 rows of a head
// tolerance: order of its own; an answer depends on the row alone, not on its neighbours
// wins: one warpgroup copies pages, two multiply, and exponentials hide behind products
// loses: as attention_mma.cu, and steps of fewer than 128 rows
// fallback: attention_mma.cu on other devices and for larger heads
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: Shah et al., FlashAttention-3 (2024), for the division of labour

#define WGMMA_THREADS 384
#define WGMMA_ROWS 128
#define WGMMA_KEYS 128
#define STAGES 2

// Bytes before piece `c` of row `r` of a tile of 128 rows in panels of 64 elements.
DEVICE u32 panel_piece(u32 r, u32 c) { return c / 8 * 128 * TILE_ROW + piece_at(r, c % 8); }

template <int HEAD>
struct WgmmaShared {
    u8 q[WGMMA_ROWS * HEAD * 2];
    u8 k[STAGES][WGMMA_KEYS * HEAD * 2];
    u8 v[STAGES][WGMMA_KEYS * HEAD * 2];
    const u16* at[STAGES][WGMMA_KEYS];
    // What has come, and what both warpgroups have read.
    u64 keys[STAGES], values[STAGES], keys_read[STAGES], values_read[STAGES];
    u32 tables[WGMMA_ROWS];
    u32 contexts[WGMMA_ROWS];
};

// Begins to copy what lies `offset` elements after the keys of `tokens` tokens, and zeros for those missing to 128; `come`
// counts the copies of each thread.
template <int HEAD>
DEVICE void copy_panels(const AttentionArgs& a, const u16* const* at, u32 tokens, u64 offset, u8* to, u64* come) {
    u32 c = threadIdx.x % (HEAD / 8), first = threadIdx.x / (HEAD / 8);
    tokens = c * 8 < a.pool.head_size ? tokens : 0;
    offset += c * 8;
    UNROLL
    for (u32 n = 0; n < HEAD / 8; n++) {
        u32 r = first + n * (1024 / HEAD);
        copy_piece(to + panel_piece(r, c), at[r] + offset, r < tokens);
    }
    arrive_with_copies(come);
}

// The copying warpgroup: keys and values, 128 tokens at a time.
template <int HEAD>
DEVICE void bring(const AttentionArgs& a, WgmmaShared<HEAD>& s, u32 first_row, u32 rows, u32 head) {
    Tokens t = first_tokens(rows, s.tables, s.contexts);
    Row row = a.step->row[first_row];
    bool more = true;
    for (u32 n = 0; more; n++) {
        u32 stage = n % STAGES, free = n / STAGES % 2 ^ 1, tokens = t.run.tokens - t.first;
        if (t.first == 0) row = a.step->row[first_row + t.begin];
        s.at[stage][threadIdx.x] = keys_of(a, row, head, t.first + threadIdx.x, t.run.tokens);
        meet_warpgroup();
        wait_phase(&s.keys_read[stage], free);
        copy_panels<HEAD>(a, s.at[stage], tokens, 0, s.k[stage], &s.keys[stage]);
        wait_phase(&s.values_read[stage], free);
        copy_panels<HEAD>(a, s.at[stage], tokens, to_values(a, row), s.v[stage], &s.values[stage]);
        more = next_tokens(t, WGMMA_KEYS, rows, s.tables, s.contexts);
    }
}

// Begins the products of 64 rows of queries and the keys of stage n.
template <int HEAD>
DEVICE void begin_scores(WgmmaShared<HEAD>& s, u32 n, const u8* q, float* scores) {
    u32 stage = n % STAGES;
    wait_phase(&s.keys[stage], n / STAGES % 2);
    show_to_products();
    begin_products();
    UNROLL
    for (u32 k = 0; k < HEAD / 16; k++) {
        u32 panel = k / 4 * 128 * TILE_ROW;
        multiply_tiles<WGMMA_KEYS>(scores, q + panel, s.k[stage] + panel, k % 4, k > 0);
    }
    end_products();
}

// Begins the products of weights and the values of stage n.
template <int HEAD>
DEVICE void begin_values(WgmmaShared<HEAD>& s, u32 n, u32 (*p)[4], float* o) {
    wait_phase(&s.values[n % STAGES], n / STAGES % 2);
    show_to_products();
    begin_products();
    UNROLL
    for (u32 k = 0; k < WGMMA_KEYS / 16; k++)
        multiply_rows<HEAD>(o, p[k], s.v[n % STAGES] + k * 16 * TILE_ROW, 128 * TILE_ROW);
    end_products();
}

// A multiplying warpgroup: 64 rows of the tile. The next scores are under way when the values of the last weights are.
template <int HEAD>
DEVICE void attend(const AttentionArgs& a, WgmmaShared<HEAD>& s, u32 first_row, u32 rows, u32 h) {
    u32 group = threadIdx.x / 128 - 1, mine = group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    float unit = __fmul_rn(a.scale, LOG2_E);
    const u8* q = s.q + group * 64 * TILE_ROW;
    Online<HEAD, WGMMA_KEYS> online;
    online.begin();
    Tokens t = first_tokens(rows, s.tables, s.contexts);
    u32 p[WGMMA_KEYS / 16][4], n = 0;
    begin_scores<HEAD>(s, n, q, online.s);
    wait_products<0>();
    if (threadIdx.x % 128 == 0) arrive(&s.keys_read[0]);
    online.weigh(t, mine, s.contexts, unit);
    online.weights(p);
    while (next_tokens(t, WGMMA_KEYS, rows, s.tables, s.contexts)) {
        begin_scores<HEAD>(s, n + 1, q, online.s);
        begin_values<HEAD>(s, n, p, online.o);
        wait_products<1>();
        if (threadIdx.x % 128 == 0) arrive(&s.keys_read[(n + 1) % STAGES]);
        online.weigh(t, mine, s.contexts, unit);
        // Sums of exponentials are never negative. Without a branch on them the compiler waits for the products first.
        if (__fadd_rn(online.sum[0], online.sum[1]) < 0.0f) stop();
        wait_products<0>();
        if (threadIdx.x % 128 == 0) arrive(&s.values_read[n % STAGES]);
        online.lower();
        online.weights(p);
        n++;
    }
    begin_values<HEAD>(s, n, p, online.o);
    wait_products<0>();
    online.finish(a, first_row, mine, rows, h);
}

template <int HEAD>
DEVICE void attention_wgmma(const AttentionArgs& a, u8* shared) {
    await_previous();
    WgmmaShared<HEAD>& s = *(WgmmaShared<HEAD>*)shared;
    // Late rows see most: they begin first.
    u32 h = blockIdx.x, first_row = (gridDim.y - 1 - blockIdx.y) * WGMMA_ROWS;
    if (first_row >= a.step->rows) return;
    u32 rows = least(a.step->rows - first_row, WGMMA_ROWS);
    UNROLL
    for (u32 n = 0; n < WGMMA_ROWS * HEAD / 8; n += WGMMA_THREADS) {
        u32 i = n + threadIdx.x, r = i / (HEAD / 8), c = i % (HEAD / 8);
        if (r < WGMMA_ROWS) *(uint4*)(s.q + panel_piece(r, c)) = query_piece(a, first_row + r, h, c);
    }
    for (u32 r = threadIdx.x; r < rows; r += WGMMA_THREADS) {
        s.tables[r] = a.step->row[first_row + r].first_page;
        s.contexts[r] = a.step->row[first_row + r].context;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            begin_barrier(&s.keys[i], 128), begin_barrier(&s.values[i], 128), begin_barrier(&s.keys_read[i], 2),
                begin_barrier(&s.values_read[i], 2);
        show_barriers();
    }
    show_to_products();
    __syncthreads();
    if (threadIdx.x < 128) {
        // What the copying threads give up is what the others get: no more may be asked for.
        fewer_registers<56>();
        bring<HEAD>(a, s, first_row, rows, a.kv_of_head[h]);
    } else {
        more_registers<224>();
        attend<HEAD>(a, s, first_row, rows, h);
    }
}

#define ATTENTION(name, head)                          \
    KERNEL(name, AttentionArgs, WGMMA_THREADS, 1) {    \
        SHARED_BYTES(shared);                          \
        attention_wgmma<head>(a, shared);              \
    }

ATTENTION(attention_wgmma_64, 64)
ATTENTION(attention_wgmma_128, 128)
