// Softmax attention for few rows, the context split over blocks: one block for each row, group of query heads that share
// a kv head, and part of the context. For one row it may carry what its heads go through before: norm, rotation, append.
//
// math: as attention.cu; a warp takes 16 tokens at a time on tensor cores, queries as three BF16 terms and weights as two,
//   and keeps its own maximum, sum and values, which meet in shared memory, and those of the parts of a row in the block
//   that is done last. Norm, rotation and append as in heads.cu
// shapes: q, out [T, H * E]; keys and values [context, E] of one kv head
// layout: pools as in kv.cuh, pages in any order; parts [rows, H, splits, 2 + E] in device memory
// precision: queries to 24 bits, weights to 16, sums in F32 in an order of its own, which depends on the row's context alone
// preconditions: a BF16 pool; E a multiple of 8 and at most 128; context at least 1 and inside the table; tickets are 0
//   before and after; with heads, one row
// cost: keys and values of the context once for each group of heads
// tolerance: `tare_ops::conformance`, order free; what the heads go through before is bit-identical to the reference
// wins: up to four heads share what is read of the cache, and keys and values of 192 tokens are under way at once; with
//   heads they are before the projections have ended, as are the norm's weight and angles; heads of 128 elements, whose number is
//   known when the kernel is compiled, are not asked at every element whether it is there
// loses: many rows of one prompt read the same keys and values again
// fallback: attention.cu
// evidence: in whole requests on an H200: 20261130T084818Z-b01ebb4b5bb81903, 20261130T085036Z-90c85b40984942a0
// source: online softmax, Milakov and Gimelshein, 2018; contexts in parts, Dao et al., Flash-Decoding, 2023

// What the triples of a head are worth under the largest of their maxima. Lane `i` of a warp brings the maximum and the
// sum of triple `i`, or `nothing()`; it gets its weight. The maximum and the sum of all go to every lane.
DEVICE float worth(float most, float* sum, float* all) {
    float m = most;
    UNROLL
    for (int half = 16; half > 0; half /= 2) {
        float other = __shfl_xor_sync(FULL, m, half, 32);
        m = other > m ? other : m;
    }
    float w = weight_of(most, m);
    float s = __fmul_rn(w, *sum);
    UNROLL
    for (int half = 16; half > 0; half /= 2) s += __shfl_xor_sync(FULL, s, half, 32);
    *sum = s;
    *all = m;
    return w;
}

// The head that a half-warp prepares: the query heads of the group come first, then the key and the value.
struct Job {
    u32 kind;
    u32 head;
    bool works;
};

DEVICE Job job(const u16* group) {
    u32 half = threadIdx.x / LANES;
    Job j;
    j.kind = half < GROUP_HEADS ? HEAD_Q : half == GROUP_HEADS ? HEAD_K : HEAD_V;
    j.head = j.kind == HEAD_Q ? group[1 + half] : group[0];
    j.works = half < GROUP_HEADS + 2 && j.head != NO_HEAD;
    return j;
}

// Pairs of neighbours that a lane has of each half of a head.
#define TURNS (MOST_SPLIT_HEAD / 4 / LANES)

// What a lane's part of a head goes through that no launch of a step writes: the weight of the norm, angles, and where a key or
// value is stored.
struct Ahead {
    float norm[MOST_SPLIT_HEAD / LANES];
    float cosine[TURNS][2];
    float sine[TURNS][2];
    u64 slot;
};

// Loads it.
template <int E>
DEVICE Ahead expect(const SplitArgs& a, const Row& row, const Job& j) {
    Ahead ahead = {};
    u32 e = elements<E>(a), lane = threadIdx.x % LANES;
    if (!j.works) return ahead;
    take_norm<MOST_SPLIT_HEAD, E>(a.heads, j.kind, e, ahead.norm);
    UNROLL
    for (u32 n = 0; n < TURNS; n++) {
        u32 m = n * LANES + lane, first = a.heads.interleaved ? m : 2 * m, second = a.heads.interleaved ? m + e / 4 : 2 * m + 1;
        if (!has<E>(m, e / 4) || j.kind == HEAD_V) continue;
        ahead.cosine[n][0] = a.heads.step->cosine[first], ahead.cosine[n][1] = a.heads.step->cosine[second];
        ahead.sine[n][0] = a.heads.step->sine[first], ahead.sine[n][1] = a.heads.step->sine[second];
    }
    if (j.kind == HEAD_Q) return ahead;
    u32 place;
    u64 page = page_of(a.heads.step, row, row.slot, &place);
    ahead.slot = place_of(a.heads.pool, page, a.heads.layer, j.kind == HEAD_V, j.head, row.page_tokens, place);
    return ahead;
}

// Norm, rotation and append for one row; queries, key and value go to shared memory. A half-warp takes a head, a lane of it
// elements 2 m and 2 m + 1 and those half a head further.
template <int E>
DEVICE void prepare(const SplitArgs& a, const Row& row, const Job& j, const Ahead& ahead, bool stores, Meeting* shared) {
    float(*scratch)[MOST_SPLIT_HEAD] = shared->o[0];
    u32 half = threadIdx.x / LANES, e = j.works ? elements<E>(a) : 0;
    float* xs = scratch[j.works ? half : GROUP_HEADS + 2];
    take_head<MOST_SPLIT_HEAD, E>(a.heads, 0, j.kind, j.works ? j.head : 0, e, ahead.norm, xs);
    __syncwarp();
    UNROLL
    for (u32 n = 0; n < TURNS; n++) {
        u32 i = 2 * (n * LANES + threadIdx.x % LANES);
        bool there = has<E>(i, e / 2);
        // Where no element is there are zeros, as many.
        u32 at[2] = {there ? i : e + 2 * (i - e / 2), there ? i + e / 2 : e + 2 * (i - e / 2) + 2};
        float v[2][2] = {};
        UNROLL
        for (int k = 0; k < 2; k++)
            if (there) v[k][0] = xs[at[k]], v[k][1] = xs[at[k] + 1];
        if (j.kind != HEAD_V && a.heads.interleaved) {
            UNROLL
            for (int k = 0; k < 2; k++) turn_pair(&v[k][0], &v[k][1], ahead.cosine[n][k], ahead.sine[n][k]);
        } else if (j.kind != HEAD_V) {
            UNROLL
            for (int k = 0; k < 2; k++) turn_pair(&v[0][k], &v[1][k], ahead.cosine[n][k], ahead.sine[n][k]);
        }
        UNROLL
        for (int k = 0; k < 2; k++) {
            if (half >= GROUP_HEADS + 2) continue;
            if (j.kind == HEAD_Q) {
                put_query(shared, half, at[k], v[k][0], v[k][1]);
                continue;
            }
            u32 both = to_bf16_pair(v[k][0], v[k][1]);
            *(u32*)((j.kind == HEAD_K ? shared->key : shared->value) + at[k]) = both;
            if (there && stores) *(u32*)((u16*)row.pool + ahead.slot + at[k]) = both;
        }
    }
    __syncthreads();
}

// The queries of a group as they are.
DEVICE void take_queries(const SplitArgs& a, u32 t, const u16* group, Meeting* shared) {
    u32 e = a.heads.pool.head_size;
    ROLLED
    for (u32 n = threadIdx.x * 2; n < GROUP_HEADS * MOST_SPLIT_HEAD; n += SPLIT_THREADS * 2) {
        u32 h = n / MOST_SPLIT_HEAD, i = n % MOST_SPLIT_HEAD, head = group[1 + h];
        bool there = head != NO_HEAD && i < e;
        const float* q = head_of(a.heads, t, HEAD_Q, there ? head : 0) + (there ? i : 0);
        put_query(shared, h, i, there ? q[0] : 0.0f, there ? q[1] : 0.0f);
    }
    __syncthreads();
}

// Elements `i` to `i + 3` of head `h` over the warps of the block.
DEVICE float4 over_warps(const Meeting* shared, u32 h, u32 i) {
    float4 o = make_float4(0, 0, 0, 0);
    UNROLL
    for (u32 k = 0; k < SPLIT_WARPS; k++) {
        float w = shared->weight[h][k];
        float4 v = *(const float4*)(shared->o[h][k] + i);
        o = make_float4(__fmaf_rn(w, v.x, o.x), __fmaf_rn(w, v.y, o.y), __fmaf_rn(w, v.z, o.z), __fmaf_rn(w, v.w, o.w));
    }
    return o;
}

// Element `i` of a head over the parts of its context.
DEVICE float over_parts(const SplitArgs& a, const Meeting* shared, u32 h, const volatile float* from, u32 parts, u32 i) {
    float v[MOST_SPLITS], o = 0.0f;
    u32 width = 2 + a.heads.pool.head_size;
    UNROLL
    for (u32 k = 0; k < MOST_SPLITS; k++) v[k] = k < parts ? from[k * width + 2 + i] : 0.0f;
    UNROLL
    for (u32 k = 0; k < MOST_SPLITS; k++) o = k < parts ? __fmaf_rn(shared->weight[h][k], v[k], o) : o;
    return o;
}

// Brings the parts of a row together, in their order, in the block that is done last.
DEVICE void merge(const SplitArgs& a, u32 t, u32 which, const u16* group, u32 parts, Meeting* shared) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = a.heads.pool.head_size, width = 2 + e;
    u32* counter = a.tickets + t * (gridDim.x / a.splits) + which;
    const volatile float* all_parts = a.parts + (u64)t * a.heads.heads * a.splits * width;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) shared->ticket = atomicAdd(counter, 1);
    __syncthreads();
    if (shared->ticket + 1 < parts) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    if (warp < GROUP_HEADS && group[1 + warp] != NO_HEAD) {
        const volatile float* from = all_parts + ((u64)group[1 + warp] * a.splits + lane) * width;
        float most = lane < parts ? from[0] : nothing(), sum = lane < parts ? from[1] : 0.0f, all;
        float w = worth(most, &sum, &all);
        if (lane < MOST_SPLITS) shared->weight[warp][lane] = w;
        if (lane == 0) shared->sum_of_all[warp] = sum;
    }
    __syncthreads();
    ROLLED
    for (u32 n = threadIdx.x; n < GROUP_HEADS * e; n += SPLIT_THREADS) {
        u32 h = n / e, i = n % e, head = group[1 + h];
        if (head == NO_HEAD) continue;
        float o = over_parts(a, shared, h, all_parts + (u64)head * a.splits * width, parts, i);
        a.out[(u64)t * a.out_stride + head * e + i] = __fdiv_rn(o, shared->sum_of_all[h]);
    }
}

template <bool WITH_HEADS, int E>
DEVICE void split(const SplitArgs& a, Meeting* shared) {
    u32 t = blockIdx.y, which = blockIdx.x / a.splits, part = blockIdx.x % a.splits;
    const u16* group = a.groups + which * (1 + GROUP_HEADS);
    let_next_start();
    if (!WITH_HEADS) await_previous();
    if (!WITH_HEADS && t >= a.heads.step->rows) return;
    // With heads the launches before have written nothing of this layer's cache: what it holds is that of earlier steps.
    const Row row = a.row[t];
    u32 each = (row.context + a.splits - 1) / a.splits;
    each = each < a.least ? a.least : each;
    u32 parts = (row.context + each - 1) / each;
    if (part >= parts) return;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = elements<E>(a);
    u32 begin = part * each, end = begin + each < row.context ? begin + each : row.context;
    u32 skip = WITH_HEADS ? row.slot : 0xffffffffu;
    Tile tile;
    const Cache cache = cache_of(a, row, group[0]);
    read_tile<E>(a, row, cache, begin + warp * TILE_TOKENS, end, skip, &tile);
    if (WITH_HEADS) {
        Job j = job(group);
        Ahead ahead = expect<E>(a, row, j);
        await_previous();
        // Groups that share a kv head follow each other.
        bool first = which == 0 || *(group - (1 + GROUP_HEADS)) != group[0];
        prepare<E>(a, row, j, ahead, part == 0 && first, shared);
    } else {
        take_queries(a, t, group, shared);
    }
    Seen seen = {{nothing(), nothing()}, {}, {}};
    for (u32 first = begin + warp * TILE_TOKENS; first < end; first += SPLIT_WARPS * TILE_TOKENS) {
        if (first >= begin + SPLIT_WARPS * TILE_TOKENS) read_tile<E>(a, row, cache, first, end, skip, &tile);
        if (WITH_HEADS) put_fresh<E>(a, shared, first, row.slot, &tile);
        attend<E>(a, shared, first, end, tile, &seen);
    }
    // What `prepare` left in the same memory has been read.
    __syncthreads();
    meet(shared, &seen);
    __syncthreads();
    if (warp < GROUP_HEADS) {
        bool there = lane < SPLIT_WARPS;
        float sum = there ? shared->sum[warp][lane] : 0.0f, all;
        float w = worth(there ? shared->most[warp][lane] : nothing(), &sum, &all);
        if (there) shared->weight[warp][lane] = w;
        if (lane == 0) shared->most_of_all[warp] = all, shared->sum_of_all[warp] = sum;
    }
    __syncthreads();
    ROLLED
    for (u32 n = threadIdx.x; n < GROUP_HEADS * (e / 4); n += SPLIT_THREADS) {
        u32 h = n / (e / 4), i = n % (e / 4) * 4, head = group[1 + h];
        if (head == NO_HEAD) continue;
        float4 o = over_warps(shared, h, i);
        if (parts == 1) {
            float all = shared->sum_of_all[h];
            *(float4*)(a.out + (u64)t * a.out_stride + head * e + i) =
                make_float4(__fdiv_rn(o.x, all), __fdiv_rn(o.y, all), __fdiv_rn(o.z, all), __fdiv_rn(o.w, all));
            continue;
        }
        float* to = a.parts + (((u64)t * a.heads.heads + head) * a.splits + part) * (2 + e);
        to[2 + i] = o.x, to[3 + i] = o.y, to[4 + i] = o.z, to[5 + i] = o.w;
        if (i == 0) to[0] = shared->most_of_all[h], to[1] = shared->sum_of_all[h];
    }
    if (parts > 1) merge(a, t, which, group, parts, shared);
}

#define SPLIT(name, with_heads, e)               \
    KERNEL(name, SplitArgs, SPLIT_THREADS) {     \
        __shared__ __align__(16) Meeting shared; \
        split<with_heads, e>(a, &shared);        \
    }

SPLIT(attention_split, false, 0)
SPLIT(attention_heads, true, 0)
SPLIT(attention_heads_128, true, 128)
