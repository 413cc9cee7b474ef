// Keys and values of the step's rows into their pages, and spans of pages in and out.
//
// math: none
// shapes: k, v [T, K * E]; a span [layers, 2, tokens, K, E]
// layout: pools as in kv.cuh
// precision: BF16 pools round to nearest, ties to even
// preconditions: slots are distinct and inside their tables; spans lie inside a page
// cost: one read of the rows, one write of the tokens
// tolerance: bit-identical to the reference
// wins: pages of any size and any order
// loses: one element a thread
// fallback: none: it takes every shape
// evidence: none yet
// source: none

struct AppendArgs {
    const Step* step;
    const float* k;
    const float* v;
    Pool pool;
    u32 k_stride;
    u32 v_stride;
    u32 layer;
    u32 reserved;
};

#define APPEND_THREADS 128

KERNEL(kv_append, AppendArgs, APPEND_THREADS) {
    u32 t = blockIdx.x;
    if (t >= a.step->rows) return;
    const Row row = a.step->row[t];
    u32 place;
    u64 page = page_of(a.step, row, row.slot, &place);
    u32 width = a.pool.kv_heads * a.pool.head_size;
    for (u32 n = threadIdx.x; n < 2 * width; n += APPEND_THREADS) {
        u32 half = n / width, i = n % width;
        float x = half ? a.v[(u64)t * a.v_stride + i] : a.k[(u64)t * a.k_stride + i];
        u64 at = place_of(a.pool, page, a.layer, half, i / a.pool.head_size, row.page_tokens, place);
        at += i % a.pool.head_size;
        if (a.pool.bf16) ((u16*)row.pool)[at] = to_bf16(x);
        else ((float*)row.pool)[at] = x;
    }
}

struct SpanArgs {
    Pool pool;
    u64 base;        // the pool
    u8* span;        // [layers, 2, tokens, K, E]
    u32 page_tokens;
    u32 page;
    u32 start;
    u32 tokens;
};

#define SPAN_THREADS 128

// One block for each layer and half.
DEVICE void span(const SpanArgs& a, bool out_of_the_pool) {
    u32 layer = blockIdx.x / 2, half = blockIdx.x % 2;
    u32 width = a.pool.kv_heads * a.pool.head_size;
    for (u64 n = threadIdx.x; n < (u64)a.tokens * width; n += SPAN_THREADS) {
        u32 token = (u32)(n / width), i = (u32)(n % width);
        u64 at = place_of(a.pool, a.page, layer, half, i / a.pool.head_size, a.page_tokens, a.start + token);
        at += i % a.pool.head_size;
        u64 outside = (u64)blockIdx.x * a.tokens * width + n;
        if (a.pool.bf16) {
            u16* in = (u16*)a.base + at;
            u16* out = (u16*)a.span + outside;
            if (out_of_the_pool) *out = *in;
            else *in = *out;
        } else {
            u32* in = (u32*)a.base + at;
            u32* out = (u32*)a.span + outside;
            if (out_of_the_pool) *out = *in;
            else *in = *out;
        }
    }
}

KERNEL(kv_read, SpanArgs, SPAN_THREADS) { span(a, true); }

KERNEL(kv_write, SpanArgs, SPAN_THREADS) { span(a, false); }
