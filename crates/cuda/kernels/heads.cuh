// What a head of a projection goes through before attention: norm, rotation, the cache. A half-warp works on a head.
struct HeadsArgs {
    const Step* step;
    float* q;
    float* k;
    const float* v;
    const float* q_norm;  // null: no norm
    const float* k_norm;
    Pool pool;
    u32 q_stride;
    u32 k_stride;
    u32 v_stride;
    u32 heads;
    u32 layer;
    u32 interleaved;
    float q_eps;
    float k_eps;
};

#define HEAD_Q 0
#define HEAD_K 1
#define HEAD_V 2

DEVICE const float* norm_of(const HeadsArgs& a, u32 kind) {
    return kind == HEAD_Q ? a.q_norm : kind == HEAD_K ? a.k_norm : 0;
}

// Where a head of row `t` begins.
DEVICE const float* head_of(const HeadsArgs& a, u32 t, u32 kind, u32 head) {
    const float* rows = kind == HEAD_Q ? a.q : kind == HEAD_K ? a.k : a.v;
    u32 stride = kind == HEAD_Q ? a.q_stride : kind == HEAD_K ? a.k_stride : a.v_stride;
    return rows + (u64)t * stride + head * a.pool.head_size;
}

// Whether a head of `width` elements has element `i`; where heads have E elements, one has all or none. E is 0 where they have
// as many as the pool says.
template <int E>
DEVICE bool has(u32 i, u32 width) {
    return E > 0 ? width > 0 : i < width;
}

// What a lane has of the weight of a head's norm, or zeros.
template <int MOST, int E>
DEVICE void take_norm(const HeadsArgs& a, u32 kind, u32 width, float* weight) {
    const float* norm = norm_of(a, kind);
    u32 lane = threadIdx.x % LANES;
    UNROLL
    for (int j = 0; j < MOST / LANES; j++) weight[j] = norm && has<E>(j * LANES + lane, width) ? norm[j * LANES + lane] : 0.0f;
}

// Reads `width` elements, at most MOST, the head or nothing of it, and normalises them with the weight that `take_norm` gave, or
// reads it when it is wanted. Every thread of the warp calls it.
template <int MOST, int E>
DEVICE void take_head(const HeadsArgs& a, u32 t, u32 kind, u32 head, u32 width, const float* weight, float* xs) {
    const float* from = head_of(a, t, kind, head);
    const float* norm = norm_of(a, kind);
    u32 lane = threadIdx.x % LANES;
    // All elements are asked for before anything waits for one.
    float x[MOST / LANES], acc = 0.0f;
    UNROLL
    for (int j = 0; j < MOST / LANES; j++) x[j] = has<E>(j * LANES + lane, width) ? from[j * LANES + lane] : 0.0f;
    UNROLL
    for (int j = 0; j < MOST / LANES; j++)
        if (has<E>(j * LANES + lane, width)) acc = __fmaf_rn(x[j], x[j], acc);
    float eps = kind == HEAD_Q ? a.q_eps : a.k_eps;
    float inv = __shfl_sync(FULL, inverse_rms(tree(acc), E > 0 ? E : a.pool.head_size, eps), 0, LANES);
    UNROLL
    for (int j = 0; j < MOST / LANES; j++) {
        u32 i = j * LANES + lane;
        if (has<E>(i, width)) xs[i] = norm ? __fmul_rn(__fmul_rn(x[j], inv), weight ? weight[j] : norm[i]) : x[j];
    }
}

// (first, second) turned by an angle, as the reference rounds.
DEVICE void turn_pair(float* first, float* second, float c, float s) {
    float p = *first, q = *second;
    *first = __fmaf_rn(p, c, -__fmul_rn(q, s));
    *second = __fmaf_rn(q, c, __fmul_rn(p, s));
}

// Turns a query or a key; every lane its own pairs.
DEVICE void turn_head(const HeadsArgs& a, u32 t, float* xs) {
    u32 pairs = a.pool.head_size / 2;
    for (u32 i = threadIdx.x % LANES; i < pairs; i += LANES) {
        u32 first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + pairs;
        float c = a.step->cosine[(u64)t * pairs + i], s = a.step->sine[(u64)t * pairs + i];
        turn_pair(xs + first, xs + second, c, s);
    }
}

// Stores a key or a value in the row's slot.
DEVICE void store_head(const HeadsArgs& a, const Row& row, u32 kind, u32 head, const float* xs) {
    u32 place;
    u64 page = page_of(a.step, row, row.slot, &place);
    u64 at = place_of(a.pool, page, a.layer, kind == HEAD_V, head, row.page_tokens, place);
    ROLLED
    for (u32 i = threadIdx.x % LANES; i < a.pool.head_size; i += LANES) {
        if (a.pool.bf16) ((u16*)row.pool)[at + i] = to_bf16(xs[i]);
        else ((float*)row.pool)[at + i] = xs[i];
    }
}
