// Sampling of rows of logits in parts: what a launch hands to the next, and the best of many.

struct Result {
    u32 token;
    float logit;
    float sum;
    u32 odd;  // 1: a NaN, an infinity above, or nothing above negative infinity
};

struct SampleArgs {
    const Step* step;
    const float* logits;
    Result* parts;    // [selected, count]
    Result* results;  // [selected]
    u32 stride;
    u32 vocab;
    u32 count;  // parts of a row
    u32 reserved;
};

#define SAMPLE_THREADS 256
#define NOWHERE 0xffffffffu

struct Best {
    float logit;
    u32 token;
    u32 odd;
};

DEVICE Best better(Best a, Best b) {
    bool second = b.logit > a.logit || (b.logit == a.logit && b.token < a.token);
    Best c = second ? b : a;
    c.odd = a.odd | b.odd;
    return c;
}

// The best of the block, in thread 0.
DEVICE Best best_of_block(Best mine, Best* parts) {
    UNROLL
    for (int half = 16; half > 0; half /= 2) {
        Best other;
        other.logit = __shfl_xor_sync(FULL, mine.logit, half, 32);
        other.token = __shfl_xor_sync(FULL, mine.token, half, 32);
        other.odd = __shfl_xor_sync(FULL, mine.odd, half, 32);
        mine = better(mine, other);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 i = 1; i < blockDim.x / 32; i++) mine = better(mine, parts[i]);
    return mine;
}

DEVICE Best none() {
    Best b;
    b.logit = -as_float(0x7f800000u);
    b.token = NOWHERE;
    b.odd = 0;
    return b;
}

// Part `blockIdx.x` of row `blockIdx.y`: ids from `begin` to `end`.
struct Run {
    const float* x;
    u32 begin;
    u32 end;
};

DEVICE Run own_run(const SampleArgs& a) {
    u32 each = (a.vocab + a.count - 1) / a.count;
    Run r;
    r.x = a.logits + (u64)blockIdx.y * a.stride;
    r.begin = blockIdx.x * each;
    r.end = r.begin + each < a.vocab ? r.begin + each : a.vocab;
    return r;
}

// The best of a part, in thread 0.
DEVICE Best best_of_run(const Run& run, Best* parts) {
    Best best = none();
    for (u32 i = run.begin + threadIdx.x; i < run.end; i += SAMPLE_THREADS) {
        float v = run.x[i];
        if (v != v || v == as_float(0x7f800000u)) best.odd = 1;
        if (v > best.logit) best.logit = v, best.token = i;
    }
    return best_of_block(best, parts);
}

DEVICE void put_result(Result* to, const Best& best, float sum) {
    Result r;
    r.token = best.token;
    r.logit = best.logit;
    r.sum = sum;
    r.odd = best.odd;
    *to = r;
}

DEVICE Best best_of(const Result& r) {
    Best b;
    b.logit = r.logit;
    b.token = r.token;
    b.odd = r.odd;
    return b;
}
